//! Kubernetes operator of DEngine.
