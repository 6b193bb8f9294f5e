//! The local Kubernetes: every program of it real, in namespaces of its own so that it can neither leave the machine nor
//! leave anything behind.

mod components;
pub mod down;
pub mod layout;
pub mod node;
pub mod pki;
pub mod process;
pub mod provisioner;
pub mod up;
