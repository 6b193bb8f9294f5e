//! The local Kubernetes: every program of it real, in namespaces of its own so that it can neither
//! leave the machine nor leave anything behind.
//!
//! It knows nothing of what is to run on it, and uses no other crate of the project: whoever brings
//! it up hands it the images, and DEngine's program if the API server keeps its objects there. How
//! programs are run ([`shell`]) and what a person sees of it ([`progress`]) is for all who start
//! some on this machine, tests of what ships among them.

mod cache;
mod components;
pub mod down;
pub mod images;
pub mod layout;
pub mod node;
mod pki;
mod private;
pub mod process;
pub mod programs;
pub mod progress;
pub mod provisioner;
pub mod settings;
pub mod shell;
pub mod store;
pub mod up;
