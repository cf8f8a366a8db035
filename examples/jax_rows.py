"""JAX: an embedding with one scale per row and rows in a ball, a kernel with one scale per column, one jitted step."""

import jax
import jax.numpy as jnp
import optax

from matrix_adagrad.domains import RowBalls
from matrix_adagrad.interop.optax import column_momentum, project, row_adagrad

WORDS, SIZE, CLASSES = 2000, 16, 10
group = jnp.arange(WORDS) % CLASSES  # the label to learn for each word

keys = iter(jax.random.split(jax.random.key(0), 4))
params = {
    "table": project(RowBalls(1.0), jax.random.normal(next(keys), (WORDS, SIZE))),
    "kernel": 0.1 * jax.random.normal(next(keys), (SIZE, CLASSES)),
    "bias": jnp.zeros(CLASSES),
}
optimizer = optax.multi_transform(
    {
        "rows": row_adagrad(0.5, domain=RowBalls(1.0)),
        "columns": column_momentum(optax.cosine_decay_schedule(0.1, 600)),
    },
    {"table": "rows", "kernel": "columns", "bias": "columns"},
)
state = optimizer.init(params)


def loss_of(params, words):
    scores = params["table"][words] @ params["kernel"] + params["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, group[words]).mean()


def step(carry, key):
    params, state = carry
    words = jax.random.randint(key, (256,), 0, WORDS)
    loss, grads = jax.value_and_grad(loss_of)(params, words)
    updates, state = optimizer.update(grads, state, params)
    return (optax.apply_updates(params, updates), state), loss


train = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys), donate_argnums=0)
(params, state), losses = train((params, state), jax.random.split(next(keys), 600))

longest = jnp.linalg.norm(params["table"], axis=1).max()
right = (jnp.argmax(params["table"] @ params["kernel"] + params["bias"], 1) == group).mean()
scales = sum(leaf.size for leaf in jax.tree.leaves(state.inner_states["rows"].inner_state.sum))
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {right:.1%} of the words are right; longest row {longest:.6f}")
print(f"{scales} scales for the {params['table'].size} numbers of the table")
assert longest <= 1 + 1e-6
assert right > 0.95
assert scales == WORDS
