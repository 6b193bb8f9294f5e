//! Why a pod does not run, and whether it can recover by itself, from what Kubernetes reports.
//! Pure.

use dengine_crds::names;
use dengine_protocol::ports;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::model::Broken;

pub(super) fn condition<'a>(pod: &'a core::Pod, type_: &str) -> Option<&'a core::PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Why the pod does not run: it cannot be scheduled, does not end, or its container does not stay
/// up.
pub(super) fn trouble(
    pod: &core::Pod,
    claim: Option<&core::PersistentVolumeClaim>,
    now: &Time,
) -> Option<String> {
    if pod.metadata.deletion_timestamp.is_some() {
        return overdue(pod, now);
    }
    if let Some(scheduled) = condition(pod, "PodScheduled").filter(|c| c.status == "False") {
        let message = scheduled.message.as_deref().unwrap_or("not scheduled");
        return Some(match out_of_reach(message, claim) {
            Some(more) => format!("{message}; {more}"),
            None => message.to_owned(),
        });
    }
    let container = container(pod)?;
    let state = container.state.as_ref()?;
    let last = container
        .last_state
        .as_ref()
        .and_then(|last| last.terminated.as_ref());
    if let Some(message) = [
        state.terminated.as_ref(),
        last.filter(|_| state.waiting.is_some()),
    ]
    .into_iter()
    .flatten()
    .find_map(last_words)
    {
        return Some(message);
    }
    let waiting = state.waiting.as_ref()?;
    let reason = waiting.reason.clone()?;
    let passing = matches!(reason.as_str(), "ContainerCreating" | "PodInitializing");
    (!passing).then(|| match &waiting.message {
        Some(message) => format!("{reason}: {message}"),
        None => reason,
    })
}

/// The scheduler's messages for a volume that is only reachable from another node: of Kubernetes
/// 1.33 and later, and of earlier versions.
const VOLUME_ELSEWHERE: [&str; 2] = [
    "didn't match PersistentVolume's node affinity",
    "volume node affinity conflict",
];
/// Annotation for the node that a volume was provisioned for.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The pod's volume is on a node that does not accept the pod, or is gone. The operator cannot
/// tell which: it may not read nodes.
fn out_of_reach(said: &str, claim: Option<&core::PersistentVolumeClaim>) -> Option<String> {
    VOLUME_ELSEWHERE
        .iter()
        .any(|message| said.contains(message))
        .then_some(())?;
    let node = claim.and_then(|claim| claim.annotations().get(SELECTED_NODE));
    let node = node.map_or_else(|| "another node".to_owned(), |node| format!("node {node}"));
    Some(format!(
        "its volume is on {node}; if that is gone for good, give up the volume: see the runbook \
         DEngineClusterDegraded"
    ))
}

/// Seconds after its grace period that a pod may take to end.
const OVERDUE_SECONDS: i64 = 60;

/// A pod that should have ended and still exists: the kubelet of its node does not respond.
fn overdue(pod: &core::Pod, now: &Time) -> Option<String> {
    // The deletion timestamp includes the grace period.
    let due = pod.metadata.deletion_timestamp.as_ref()?;
    if now.0.as_second() - due.0.as_second() < OVERDUE_SECONDS {
        return None;
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    Some(format!(
        "its pod should have ended by {}, but its node {} does not confirm that; if the node is \
         gone for good, see the runbook DEngineClusterDegraded",
        due.0,
        node.unwrap_or("(none)")
    ))
}

/// Seconds after which a running server without an answer is reported; one that starts takes its
/// time.
const SILENT_SECONDS_MIN: i64 = 60;

/// For a pod whose member does not answer: its server should run, according to a kubelet that may
/// be down. Nothing is decided by it: until the pod is deleted, the node may come back at any time.
/// Kubernetes deletes it after five minutes, and never if the pod tolerates its node's absence.
pub(super) fn silent(pod: &core::Pod, now: &Time) -> Option<String> {
    let runs = container(pod)?.state.as_ref()?.running.is_some();
    let stays = pod.metadata.deletion_timestamp.is_none();
    let ready = condition(pod, "Ready").filter(|_| runs && stays)?;
    let since = ready.last_transition_time.as_ref()?;
    if now.0.as_second() - since.0.as_second() < SILENT_SECONDS_MIN {
        return None;
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let node = node.unwrap_or("(none)");
    Some(if ready.status == "True" {
        kept_from_operator(node)
    } else {
        format!(
            "its server should run, but has not been ready since {} and does not answer: its data \
             directory is large, its disk hangs, or its node {node} is down (`kubectl get node \
             {node}`); see the runbook DEngineClusterDegraded",
            since.0
        )
    })
}

/// The kubelet reaches the member, and the operator does not. A pod on a node that just went away
/// counts as ready for a moment more.
fn kept_from_operator(node: &str) -> String {
    let port = ports::ADMIN;
    format!(
        "its pod is ready, but does not answer the operator on port {port}: check whether a \
         NetworkPolicy blocks the operator (docs/network-policy.md), or whether its node {node} \
         just went down (`kubectl get node {node}`)"
    )
}

/// How the server ended and the last line of its log, which Kubernetes keeps.
fn last_words(ended: &core::ContainerStateTerminated) -> Option<String> {
    if ended.reason.as_deref() == Some(OUT_OF_MEMORY) {
        return Some(
            "the server was killed because it exceeded its memory limit (OOMKilled); raise \
             spec.resources.limits.memory"
                .to_owned(),
        );
    }
    let said = ended.message.as_deref().unwrap_or_default().lines();
    let last = said.map(str::trim).rfind(|line| !line.is_empty());
    let code = ended.exit_code;
    let why = if code == EXIT_ENVIRONMENT {
        " (the machine or its disk keeps it from running)"
    } else {
        ""
    };
    Some(match last {
        Some(message) => format!("the server exited with code {code}{why}: {message}"),
        None => format!("the server exited with code {code}{why}"),
    })
}

/// The server's container: sidecars may come first.
fn container(pod: &core::Pod) -> Option<&core::ContainerStatus> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    containers
        .iter()
        .find(|container| container.name == names::cluster::CONTAINER)
}

/// Failures in a row after which a member is given up: with Kubernetes' growing pauses between
/// them, a little more than a minute.
const OWN_ENDS_MIN: u32 = 4;
/// A member that served a moment ago is not given up.
const NOT_READY_SECONDS_MIN: i64 = 60;
const OUT_OF_MEMORY: &str = "OOMKilled";
/// Kubernetes' reasons for a container that ran and ended with its own exit code.
const ENDED_BY_ITSELF: [&str; 2] = ["Error", ""];
/// Exit codes that may be the fault of the server or its data directory: it failed, or touched
/// memory that is not its own (SIGSEGV). Others have other causes: settings (2), the machine or its
/// disk (4), lack of threads or memory (101, 134), a failed start (125 to 128), a kill, or unknown,
/// as after a node's restart (255).
const OWN_FAULT: [i32; 2] = [1, 139];
/// Exit code of the server when its data directory cannot be used any more.
const EXIT_REPLACE: i32 = 3;
/// Exit code when the machine or its disk keeps it from running.
const EXIT_ENVIRONMENT: i32 = 4;

/// Only for a container that does not run now: earlier ends no longer count while it runs.
/// `own_ends`: how often in a row it failed by itself.
pub(super) fn broken(pod: &core::Pod, own_ends: u32) -> Option<Broken> {
    let state = container(pod)?.state.as_ref()?;
    let rests = state.waiting.is_some() || state.terminated.is_some();
    let ended = last_end(pod).filter(|_| rests)?;
    let waiting = state.waiting.as_ref();
    let crash_loops =
        waiting.and_then(|waiting| waiting.reason.as_deref()) == Some("CrashLoopBackOff");
    if ended.exit_code == EXIT_REPLACE {
        Some(Broken::Folder)
    } else if crash_loops
        && is_its_own_fault(ended)
        && own_ends >= OWN_ENDS_MIN
        && not_ready_seconds(pod, ended)? >= NOT_READY_SECONDS_MIN
    {
        Some(Broken::Crashing)
    } else {
        None
    }
}

/// The last end of the server, whether it runs again or not.
pub(super) fn last_end(pod: &core::Pod) -> Option<&core::ContainerStateTerminated> {
    let container = container(pod)?;
    let states = [&container.state, &container.last_state];
    let mut states = states.into_iter().flatten();
    states.find_map(|state| state.terminated.as_ref())
}

/// Whether the server failed for a reason that may lie in its data directory. Lack of memory, a
/// failed probe and faults of the node are no reason to replace its volume, and a new one would not
/// help.
pub(super) fn is_its_own_fault(ended: &core::ContainerStateTerminated) -> bool {
    let reason = ended.reason.as_deref().unwrap_or_default();
    ENDED_BY_ITSELF.contains(&reason) && OWN_FAULT.contains(&ended.exit_code)
}

/// Since when the pod has not been Ready; `None` if it is, or unknown.
pub(super) fn not_ready_since(pod: &core::Pod) -> Option<&Time> {
    let ready = condition(pod, "Ready").filter(|condition| condition.status == "False")?;
    ready.last_transition_time.as_ref()
}

/// How long the pod had not been Ready when its container ended last.
fn not_ready_seconds(pod: &core::Pod, ended: &core::ContainerStateTerminated) -> Option<i64> {
    let since = not_ready_since(pod)?;
    Some(ended.finished_at.as_ref()?.0.as_second() - since.0.as_second())
}

#[cfg(test)]
pub(super) mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Option<Time> {
        Some(Time(Timestamp::from_second(second).unwrap()))
    }

    /// A server that crash-loops: its pod is not Ready since `since`, and it ended last at `ended`.
    pub(in crate::cluster) fn crashing(since: i64, ended: i64) -> core::Pod {
        let waiting = core::ContainerStateWaiting {
            reason: Some("CrashLoopBackOff".to_owned()),
            ..core::ContainerStateWaiting::default()
        };
        let terminated = core::ContainerStateTerminated {
            exit_code: 1,
            finished_at: at(ended),
            message: Some("no such setting".to_owned()),
            ..core::ContainerStateTerminated::default()
        };
        let server = core::ContainerStatus {
            name: names::cluster::CONTAINER.to_owned(),
            state: Some(core::ContainerState {
                waiting: Some(waiting),
                ..core::ContainerState::default()
            }),
            last_state: Some(core::ContainerState {
                terminated: Some(terminated),
                ..core::ContainerState::default()
            }),
            ..core::ContainerStatus::default()
        };
        let ready = core::PodCondition {
            type_: "Ready".to_owned(),
            status: "False".to_owned(),
            last_transition_time: at(since),
            ..core::PodCondition::default()
        };
        core::Pod {
            status: Some(core::PodStatus {
                conditions: Some(vec![ready]),
                container_statuses: Some(vec![server]),
                ..core::PodStatus::default()
            }),
            ..core::Pod::default()
        }
    }

    pub(in crate::cluster) fn ended_with(pod: &mut core::Pod, code: i32, reason: &str) {
        let last = server(pod).last_state.as_mut().unwrap();
        let ended = last.terminated.as_mut().unwrap();
        (ended.exit_code, ended.reason) = (code, Some(reason.to_owned()));
    }

    fn server(pod: &mut core::Pod) -> &mut core::ContainerStatus {
        let containers = pod.status.as_mut().unwrap().container_statuses.as_mut();
        containers.unwrap().last_mut().unwrap()
    }

    #[test]
    fn a_server_that_fails_for_a_minute_is_crashing() {
        assert_eq!(broken(&crashing(100, 160), 4), Some(Broken::Crashing));
        assert_eq!(broken(&crashing(100, 160), 3), None, "too few ends");
    }

    #[test]
    fn a_server_that_was_stopped_from_outside_is_not_crashing() {
        let mut pod = crashing(100, 1_000);
        for (code, reason, expected) in [
            (1, "Error", Some(Broken::Crashing)),
            (139, "Error", Some(Broken::Crashing)),
            // Wrong settings; an I/O error, no space, no more threads or files, a port in use.
            (2, "Error", None),
            (4, "Error", None),
            // No thread could be created, or no memory be allocated.
            (101, "Error", None),
            (134, "Error", None),
            (137, "OOMKilled", None),
            // The kernel may kill a child process, or Kubernetes may notice late.
            (1, "OOMKilled", None),
            (137, "Error", None),
            (143, "Error", None),
            (0, "Completed", None),
            (127, "ContainerCannotRun", None),
            (128, "StartError", None),
            (255, "Unknown", None),
            (137, "ContainerStatusUnknown", None),
        ] {
            ended_with(&mut pod, code, reason);
            assert_eq!(broken(&pod, 40), expected, "{code} {reason}");
        }
    }

    #[test]
    fn a_lack_of_memory_is_reported_with_what_to_do() {
        let mut pod = crashing(100, 160);
        ended_with(&mut pod, 137, "OOMKilled");
        let message = trouble(&pod, None, &at(200).unwrap()).unwrap();
        assert!(
            message.contains("spec.resources.limits.memory"),
            "{message}"
        );
    }

    #[test]
    fn a_pod_that_does_not_end_names_its_node_and_the_runbook() {
        let mut pod = crashing(100, 160);
        pod.metadata.deletion_timestamp = at(1_000);
        pod.spec = Some(core::PodSpec {
            node_name: Some("far".to_owned()),
            ..core::PodSpec::default()
        });
        assert_eq!(
            trouble(&pod, None, &at(1_059).unwrap()),
            None,
            "it may still"
        );
        let message = trouble(&pod, None, &at(1_060).unwrap()).unwrap();
        assert!(message.contains("node far"), "{message}");
        assert!(
            message.contains("runbook DEngineClusterDegraded"),
            "{message}"
        );
        let later = trouble(&pod, None, &at(9_000).unwrap()).unwrap();
        assert_eq!(later, message, "the status is not written again");
    }

    #[test]
    fn a_silent_server_is_reported_with_its_node_and_since_when() {
        let pod = |ready: &str, state: &str| -> core::Pod {
            serde_saphyr::from_str(&format!(
                "{{metadata: {{name: p}}, spec: {{nodeName: far, containers: []}}, status: {{
                  conditions: [{{type: Ready, status: '{ready}', lastTransitionTime: \
                 '1970-01-01T00:16:40Z'}}],
                  containerStatuses: [{{name: dengine, restartCount: 0, image: '', imageID: '', \
                 ready: false,
                    state: {state}}}]}}}}"
            ))
            .unwrap()
        };
        let runs = "{running: {startedAt: '1970-01-01T00:00:00Z'}}";
        let soon = silent(&pod("False", runs), &at(1_059).unwrap());
        assert_eq!(soon, None, "it starts");
        for ready in ["False", "Unknown"] {
            let message = silent(&pod(ready, runs), &at(1_060).unwrap()).unwrap();
            assert!(message.contains("since 1970-01-01T00:16:40Z"), "{message}");
            assert!(message.contains("kubectl get node far"), "{message}");
        }
        let now = at(9_000).unwrap();
        let soon = silent(&pod("True", runs), &at(1_059).unwrap());
        assert_eq!(soon, None, "it serves since a moment ago");
        let message = silent(&pod("True", runs), &now).unwrap();
        assert!(message.contains("NetworkPolicy"), "{message}");
        assert!(message.contains("on port 4103"), "{message}");
        let waits = "{waiting: {reason: CrashLoopBackOff}}";
        for ready in ["False", "True"] {
            assert_eq!(silent(&pod(ready, waits), &now), None, "that is told");
        }
    }

    #[test]
    fn a_volume_on_a_node_that_is_gone_names_it_and_the_runbook() {
        let pending = |said: &str| -> core::Pod {
            serde_saphyr::from_str(&format!(
                "{{metadata: {{name: p}}, status: {{conditions: [
                  {{type: PodScheduled, status: 'False', reason: Unschedulable, message: \
                 \"{said}\"}}]}}}}"
            ))
            .unwrap()
        };
        let claim: core::PersistentVolumeClaim = serde_saphyr::from_str(
            "{metadata: {name: c, annotations: {volume.kubernetes.io/selected-node: far}}}",
        )
        .unwrap();
        for said in [
            "0/3 nodes are available: 3 node(s) didn't match PersistentVolume's node affinity.",
            "0/3 nodes are available: 1 node(s) had volume node affinity conflict, 2 Insufficient \
             cpu.",
        ] {
            let message = trouble(&pending(said), Some(&claim), &at(1).unwrap()).unwrap();
            assert!(message.starts_with(said), "{message}");
            assert!(message.contains("its volume is on node far"), "{message}");
            assert!(
                message.contains("runbook DEngineClusterDegraded"),
                "{message}"
            );
            let message = trouble(&pending(said), None, &at(1).unwrap()).unwrap();
            assert!(
                message.contains("its volume is on another node"),
                "{message}"
            );
        }
        let full = "0/3 nodes are available: 3 Insufficient cpu.";
        let message = trouble(&pending(full), Some(&claim), &at(1).unwrap());
        assert_eq!(message.as_deref(), Some(full), "it may be had again");
    }

    #[test]
    fn a_server_that_just_served_is_not_crashing() {
        assert_eq!(broken(&crashing(1_000_000, 1_000_010), 40), None);
        let mut ready = crashing(100, 1_000_000);
        let conditions = ready.status.as_mut().unwrap().conditions.as_mut();
        conditions.unwrap()[0].status = "True".to_owned();
        assert_eq!(broken(&ready, 40), None, "it is Ready");
        ready.status.as_mut().unwrap().conditions = None;
        assert_eq!(broken(&ready, 40), None, "nothing is known");
    }

    #[test]
    fn an_unusable_data_directory_counts_at_once() {
        let mut pod = crashing(100, 101);
        ended_with(&mut pod, EXIT_REPLACE, "Error");
        assert_eq!(broken(&pod, 0), Some(Broken::Folder));
        server(&mut pod).state = None;
        assert_eq!(broken(&pod, 0), None, "it may run");
    }

    #[test]
    fn other_containers_of_the_pod_are_not_the_server() {
        let mut pod = crashing(100, 160);
        let sidecar = core::ContainerStatus {
            name: "a-proxy".to_owned(),
            state: Some(core::ContainerState::default()),
            ..core::ContainerStatus::default()
        };
        let containers = pod.status.as_mut().unwrap().container_statuses.as_mut();
        containers.unwrap().insert(0, sidecar);
        assert_eq!(broken(&pod, 4), Some(Broken::Crashing));
        let now = at(1_000).unwrap();
        assert!(
            trouble(&pod, None, &now)
                .unwrap()
                .ends_with("no such setting")
        );
        server(&mut pod).name = "another".to_owned();
        assert_eq!((broken(&pod, 4), trouble(&pod, None, &now)), (None, None));
    }
}
