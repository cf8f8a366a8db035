"""A DLRM trained by this package, by TorchRec with FBGEMM, and by torch: speed, AUC and memory in one run."""
