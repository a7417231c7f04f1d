"""Builds the native engine; all else about the package is in pyproject.toml.

The C++ sources are compiled once for each instruction set and linked into one library without
torch or Python headers; which variant runs is decided when it is loaded. Where no compiler is
found, or it fails, the package installs all the same and uses the engine written in PyTorch.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src/midge/kernels/source")
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
VARIANTS: dict[str, list[str]] = {"portable": []}
if platform.machine() in ("x86_64", "AMD64"):
    FLAGS.append("-DMIDGE_X86")
    VARIANTS["avx2"] = ["-mavx2", "-mfma"]
    VARIANTS["avx512"] = [
        *("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma"),
        "-mprefer-vector-width=512",
    ]


class BuildEngine(build_ext):
    """Compiles each variant with flags of its own, which setuptools itself cannot."""

    def build_extension(self, ext: Extension) -> None:
        """Compiles and links; a failure is reported and forgiven."""
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
        if compiler is None:
            print("midge: no C++ compiler found; installing without the native engine")
            return
        try:
            self._build(compiler, Path(self.get_ext_fullpath(ext.name)))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"midge: the native engine was not built ({error}); installing without it")

    def _build(self, compiler: str, target: Path) -> None:
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        jobs: list[tuple[str, list[str], Path]] = [
            (f"{name}.cpp", [], folder / f"{name}.o") for name in ("engine", "traces")
        ]
        for name, flags in VARIANTS.items():
            jobs.append(("variant.cpp", [f"-DMIDGE_VARIANT={name}", *flags], folder / f"{name}.o"))

        def compile_one(job: tuple[str, list[str], Path]) -> str:
            source, flags, output = job
            command = [compiler, *FLAGS, *flags, "-c", str(SOURCE / source), "-o", str(output)]
            subprocess.run(command, check=True)
            return str(output)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = list(pool.map(compile_one, jobs))
        subprocess.run([compiler, "-shared", "-fopenmp", *objects, "-o", str(target)], check=True)


setup(
    ext_modules=[Extension("midge.kernels._engine", sources=[], optional=True)],
    cmdclass={"build_ext": BuildEngine},
)
