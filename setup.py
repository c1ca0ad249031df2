"""Builds the optional C kernel; everything else is in pyproject.toml."""

from setuptools import Extension, setup

NATIVE = "src/gradient_flow/table/kernels/native"

setup(
    ext_modules=[
        Extension(
            "gradient_flow.table.kernels._native",
            sources=[f"{NATIVE}/module.c", f"{NATIVE}/kernel.c", f"{NATIVE}/sample.c"],
            depends=[f"{NATIVE}/kernel.h", f"{NATIVE}/dlpack.h"],
            # Sums may be reordered into vector lanes. Not -ffinite-math-only: NaN must be seen.
            extra_compile_args=[
                "-O3",
                "-std=gnu11",
                "-fopenmp-simd",
                "-fno-math-errno",
                "-fno-trapping-math",
                "-fno-signed-zeros",
                "-fassociative-math",
            ],
            libraries=["pthread", "dl", "m"],
            py_limited_api=True,
            optional=True,  # without a compiler the torch and NumPy kernels serve
        )
    ],
    # The stable ABI of the lowest Python: one wheel serves it and every later one.
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
