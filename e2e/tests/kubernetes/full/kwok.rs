//! Kubernetes itself on DEngine, with more nodes and pods than a machine has.
//!
//! Like `store`, it brings up a local Kubernetes of its own and takes it down again, so it is run
//! only by `make e2e-full ONLY=kwok`. `make kwok` is the same in any size, and beside etcd.

use std::path::Path;

use dengine_e2e::kwok::{self, Measured, Size};
use dengine_local_kubernetes::settings::Store;

use crate::load::say;

const SIZE: Size = Size {
    nodes: 100,
    pods: 1_000,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_pods_of_a_hundred_nodes_come_and_go_on_dengine() {
    let program = dengine_testkit::built_program("make e2e-full ONLY=kwok");
    let own_program = Path::new(env!("CARGO_BIN_EXE_dengine-e2e"));
    let measured = kwok::turn(own_program, Store::Dengine(program), SIZE).await;
    let measured = measured.unwrap();
    say(format_args!(
        "{}",
        kwok::render(std::slice::from_ref(&measured))
    ));
    // Each is made, bound to a node, said to run, and deleted; and its Events are made.
    let pods = u64::from(SIZE.pods);
    for (operation, least) in [("create", 2 * pods), ("update", 2 * pods), ("delete", pods)] {
        let found = count(&measured, operation);
        assert!(found >= least, "{found} of {operation}");
    }
}

/// Of the API server's own account.
fn count(measured: &Measured, operation: &str) -> u64 {
    let mut all = measured.requests.iter();
    let times = all.find(|times| times.operation == operation);
    times.map_or(0, |times| times.count)
}
