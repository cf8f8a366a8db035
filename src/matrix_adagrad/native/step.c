/* What the steps for dense and for sparse gradients share: the settings of a step, and its tiles. */

#include "step.h"
#include "threads.h"

settings begin_step(const tensor *t, const config *c, int passes)
{
    if (passes == (READ | MOVE)) {
        if (t->step_is_f64) *(double *)t->step += 1;
        else *(float *)t->step += 1;
    }
    settings s = settings_at(t->step_is_f64 ? *(double *)t->step : *(float *)t->step, t->divisor, c);
    s.seed = (t->dtype == BF16 || t->dtype == F16) && c->seed ? (c->seed + t->stream * 0x9e3779b97f4a7c15u) | 1 : 0;
    s.combine = (enum combine)t->combine;
    return s;
}

void plan_work(const tensor *t, const settings *s, int passes, const uint64_t *order, work *w)
{
    const arithmetic *stored_ops = arithmetic_of(t->dtype, s->momentum),
                     *real_ops = real_arithmetic_of(t->dtype, s->momentum);
    int contiguous = t->x.inner == 1 && (order || t->g.inner == 1) && (!s->momentum || t->average.inner == 1) &&
                     (t->kind != PER_ENTRY || t->statistic.inner == 1);
    int needs_reals =
        (order || t->kind == PER_ENTRY) && stored_ops != real_ops; /* their arithmetic is on reals alone */
    w->t = t, w->s = s, w->passes = passes, w->order = order;
    w->staged = !contiguous || s->l2 != 0 || s->seed != 0 || needs_reals;
    w->stored_ops = stored_ops, w->ops = w->staged ? real_ops : stored_ops;
    w->value_rows = NULL, w->fused = 0;
}

tile_buffers buffers_of_thread(const work *w)
{
    char *x = w->thread_buffers + thread_number() * w->thread_bytes;
    int64_t bytes = w->buffer_entries * w->ops->real_bytes;
    return (tile_buffers){x, x + bytes, x + 2 * bytes, x + 3 * bytes, x + TILE_COPIES * bytes};
}

/* ------------------------------------------------------------------------------------------------------------ tiles */

static void load(const arithmetic *ops, const array *a, const span *at, void *to)
{
    const void *from = entry_at(a->data, at->row * a->outer + at->column * a->inner, ops->entry_bytes);
    ops->load(from, a->outer, a->inner, at->row_index, at->rows, at->columns, to);
}

static void store(const arithmetic *ops, const void *from, const array *a, const span *at, uint64_t seed)
{
    void *to = entry_at(a->data, at->row * a->outer + at->column * a->inner, ops->entry_bytes);
    ops->store(from, to, a->outer, a->inner, at->row_index, at->rows, at->columns, seed, at->row, at->column);
}

static void *in_place(const array *a, const span *at, int64_t entry_bytes)
{
    return entry_if_any(a->data, at->row * a->outer + at->column, entry_bytes);
}

static void point_at(const work *w, const span *at, tile_view *tile)
{
    const tensor *t = w->t;
    int64_t entry_bytes = w->ops->entry_bytes, real_bytes = w->ops->real_bytes;
    tile->row_index = at->row_index;
    tile->x = in_place(&t->x, at, entry_bytes), tile->x_stride = t->x.outer;
    tile->average = in_place(&t->average, at, real_bytes), tile->average_stride = t->average.outer;
    if (t->kind == PER_ENTRY) tile->v = in_place(&t->statistic, at, real_bytes), tile->v_stride = t->statistic.outer;
    if (!w->order) tile->g = in_place(&t->g, at, entry_bytes), tile->g_stride = t->g.outer;
}

static void copy_to(const tile_buffers *buf, const work *w, const span *at, int passes, tile_view *tile)
{
    const tensor *t = w->t;
    tile->row_index = NULL;
    tile->x = buf->x, tile->average = buf->average;
    tile->x_stride = tile->average_stride = at->columns;
    if (passes & MOVE || w->s->l2 != 0) load(w->stored_ops, &t->x, at, tile->x);
    if (w->s->momentum) load(w->ops, &t->average, at, tile->average);
    if (t->kind != PER_ENTRY || w->s->steepest) return;
    tile->v = buf->v, tile->v_stride = at->columns;
    load(w->ops, &t->statistic, at, tile->v);
}

void open_tile(const work *w, const span *at, int passes, const tile_buffers *buf, tile_view *tile)
{
    const tensor *t = w->t;
    tile->rows = at->rows, tile->columns = at->columns;
    if (t->kind == PER_OUTER) tile->v = entry_if_any(t->statistic.data, at->row, w->ops->real_bytes);
    if (w->staged) copy_to(buf, w, at, passes, tile);
    else point_at(w, at, tile);
    if (w->staged || w->order) tile->g = buf->g, tile->g_stride = at->columns;
    if (!(passes & READ) && moves_without_g(w->s)) return;
    if (w->order) {
        const gather g = {
            .values = t->g.data,
            .row_stride = t->g.outer,
            .column_stride = t->g.inner,
            .order = w->order,
            .order_count = t->nnz,
            .value_rows = w->value_rows,
            .weights = t->weights,
            .starts = at->starts,
            .rows = at->rows,
            .columns = at->columns,
            .to_stride = at->columns,
        };
        w->stored_ops->gather_sums(&g, tile->g);
    } else if (w->staged) load(w->stored_ops, &t->g, at, tile->g);
    if (w->s->l2 != 0) w->ops->add_penalty(tile->g, tile->x, w->s, at->rows * at->columns);
}

void close_tile(const work *w, const tile_view *tile, const span *at, int passes)
{
    if (!w->staged) return;
    if (passes & MOVE) store(w->stored_ops, tile->x, &w->t->x, at, w->s->seed);
    if (passes & READ && w->s->momentum) store(w->ops, tile->average, &w->t->average, at, 0);
    if (w->t->kind == PER_ENTRY && !w->s->steepest) store(w->ops, tile->v, &w->t->statistic, at, 0);
}
