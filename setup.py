"""Builds the native kernels; everything else is in pyproject.toml. The package also installs without a C compiler."""

import os
import sysconfig
from concurrent.futures import ThreadPoolExecutor

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = "src/matrix_adagrad/native"
SOURCES = (
    *("bags", "balls", "dense", "dispatch", "factored", "interface", "lazy", "sparse", "step"),
    *("tiles", "tiles_avx2", "tiles_avx512"),
)
# The kernels do not use Python, so one build serves every version. setuptools cannot say so for free-threaded builds.
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")

kernels = Extension(
    "matrix_adagrad.native._kernels",
    sources=[f"{NATIVE}/{name}.c" for name in SOURCES],
    depends=[f"{NATIVE}/{name}.h" for name in ("kernels", "reals", "step", "threads", "tiles", "update")],
    # No fused multiply-adds: the same bits on every CPU. No trapping: what is masked out may be computed.
    extra_compile_args=[
        *("-std=gnu11", "-O3", "-fopenmp", "-fvisibility=hidden", "-Wno-psabi"),
        *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
        "-falign-loops=64",  # or the speed of a loop depends on the code before it, by up to 15 %
        f"-ffile-prefix-map={os.getcwd()}=.",  # the same bytes wherever it is built
    ],
    extra_link_args=["-fopenmp", "-lm"],
    optional=True,
    py_limited_api=LIMITED,
)


class ParallelBuild(build_ext):
    """Compiles the sources side by side: those with the arithmetic take a quarter of a minute each."""

    def build_extensions(self):
        compile_some = self.compiler.compile

        def compile_all(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = pool.map(lambda source: compile_some([source], **options), sources)
                return [name for names in objects for name in names]

        self.compiler.compile = compile_all
        super().build_extensions()


# MATRIX_ADAGRAD_PURE=1 leaves them out, for the wheel for all other platforms.
pure = os.environ.get("MATRIX_ADAGRAD_PURE") == "1"
setup(
    cmdclass={"build_ext": ParallelBuild},
    ext_modules=[] if pure else [kernels],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED and not pure else {},
)
