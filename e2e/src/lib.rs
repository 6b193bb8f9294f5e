//! Local Kubernetes, demo and end-to-end tests of DEngine.
