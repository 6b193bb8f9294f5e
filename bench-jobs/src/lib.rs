//! Load generator for DEngine and etcd.
