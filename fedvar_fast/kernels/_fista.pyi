from fedvar_fast._typing import FloatArray, IntArray

def soft_threshold(a: FloatArray, threshold: float, out: FloatArray) -> None: ...
def fista_lasso(
    xx: FloatArray,
    linear: FloatArray,
    energy: FloatArray,
    n_rows: float,
    penalty: float,
    step: float,
    max_iter: int,
    tol: float,
    rows_per_block: int,
    n_threads: int,
    coef: FloatArray,
    gaps: FloatArray,
    iterations: IntArray,
) -> None: ...
