"""Sources of the demo models: serving code, Triton configuration, and the training that makes their artifacts.

`deploy.local.repository` turns these folders into a Triton model repository. Code below this package runs in the
`.triton` environment (NumPy below 2, scikit-learn), either in a Triton stub or at build time.
"""
