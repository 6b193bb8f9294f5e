//! Servers that crash again and again.

use serde_json::json;

use crate::World;

const POD: &str = "/api/v1/namespaces/test/pods/demo-2";

/// The server of `demo-2` has not been ready since midnight, ended in this minute, and waits for
/// its next start.
fn ended(world: &World, minute: usize, code: i32, reason: &str) {
    let end = json!({
        "exitCode": code, "reason": reason, "finishedAt": format!("2026-01-01T00:{minute:02}:00Z"),
    });
    let server = json!({
        "name": "dengine", "image": "", "imageID": "", "ready": false, "restartCount": minute,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": end},
    });
    let not_ready =
        json!({"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"podIP": null, "conditions": [not_ready], "containerStatuses": [server]});
    world.api.put(POD, json!({ "status": status }));
}

/// Faults of its node, its disk and its limits would also hit a new volume.
#[tokio::test]
async fn only_a_server_that_keeps_failing_by_itself_is_replaced() {
    let killed = (137, "OOMKilled");
    let failed = (1, "Error");
    for (ends, given_up) in [
        (vec![failed; 6], true),
        (vec![killed; 10], false),
        ([vec![killed; 10], vec![failed]].concat(), false),
        (vec![(2, "Error"); 6], false),
        (vec![(4, "Error"); 6], false),
        (vec![(134, "Error"); 6], false),
    ] {
        let world = World::settled().await;
        for (minute, (code, reason)) in (1..).zip(&ends) {
            ended(&world, minute, *code, reason);
            world.reconcile().await;
        }
        let replaced = world.cluster().status.unwrap().replacements;
        assert_eq!(!replaced.is_empty(), given_up, "{ends:?}: {replaced:?}");
    }
}
