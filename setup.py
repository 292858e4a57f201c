"""The compiled kernels; everything else about the package stands in pyproject.toml."""

import os
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

KERNELS = ["_threads", "_moments", "_spectral", "_gradient", "_clipped", "_fista", "_coordinate", "_admm", "_lowrank"]
HEADERS = ["kernels/_blas.pxd", "kernels/_lasso.pxd", "kernels/_rows.pxd", "kernels/_tiles.pxd", "kernels/_tiles.h"]

PROBE = """
#include <omp.h>
int main(void) {
    int n = 0;
    #pragma omp parallel reduction(+:n)
    n += 1;
    return n < 1 || omp_get_max_threads() < 1;
}
"""


def extensions():
    return [
        Extension(
            f"fedvar_fast.kernels.{name}",
            [f"kernels/{name}.pyx"],
            # `depends` puts the Cython sources into the source distribution.
            depends=[f"kernels/{name}.pyx", *HEADERS],
        )
        for name in KERNELS
    ]


def openmp_flags(compiler):
    """Compile and link flags for OpenMP, or two empty lists where the compiler has none."""
    if os.environ.get("FEDVAR_FAST_NO_OPENMP"):
        return [], []
    if compiler.compiler_type == "msvc":
        candidates = [(["/openmp"], [])]
    elif sys.platform == "darwin":
        candidates = [(["-Xpreprocessor", "-fopenmp"], ["-lomp"]), (["-fopenmp"], ["-fopenmp"])]
    else:
        candidates = [(["-fopenmp"], ["-fopenmp"])]
    for compile_flags, link_flags in candidates:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(PROBE)
            try:
                objects = compiler.compile([str(source)], output_dir=folder, extra_postargs=compile_flags)
                compiler.link_executable(objects, str(Path(folder, "probe")), extra_postargs=link_flags)
            except (CompileError, LinkError):
                continue
            return compile_flags, link_flags
    return [], []


class BuildKernels(build_ext):
    """Cythonize when something is built, not when setup.py is read; OpenMP where the compiler has it."""

    def finalize_options(self):
        from Cython.Build import cythonize

        self.distribution.ext_modules[:] = cythonize(
            self.distribution.ext_modules,
            include_path=["kernels"],
            compiler_directives={
                "language_level": "3",
                "boundscheck": False,
                "wraparound": False,
                "cdivision": True,
                "initializedcheck": False,
            },
        )
        super().finalize_options()

    def build_extensions(self):
        compile_flags, link_flags = openmp_flags(self.compiler)
        optimise = ["/O2"] if self.compiler.compiler_type == "msvc" else ["-O3"]
        if not compile_flags:
            print("fedvar_fast: no OpenMP found, the kernels are built for one thread")
        for extension in self.extensions:
            extension.extra_compile_args = optimise + compile_flags
            extension.extra_link_args = link_flags
        super().build_extensions()


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernels})
