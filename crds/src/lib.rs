//! Custom resources of DEngine.
