//! Why a pod does not run, and whether it will by itself: read from what Kubernetes says of it. Pure.

use dengine_crds::names;
use k8s_openapi::api::core::v1 as core;

use super::model::Broken;

pub(super) fn condition<'a>(pod: &'a core::Pod, type_: &str) -> Option<&'a core::PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Why the pod does not run: it can not be scheduled, or its container does not stay up.
pub(super) fn trouble(pod: &core::Pod) -> Option<String> {
    if let Some(scheduled) = condition(pod, "PodScheduled").filter(|c| c.status == "False") {
        return Some(
            scheduled
                .message
                .clone()
                .unwrap_or_else(|| "not scheduled".to_owned()),
        );
    }
    let container = container(pod)?;
    let state = container.state.as_ref()?;
    let last = container
        .last_state
        .as_ref()
        .and_then(|last| last.terminated.as_ref());
    if let Some(words) = [
        state.terminated.as_ref(),
        last.filter(|_| state.waiting.is_some()),
    ]
    .into_iter()
    .flatten()
    .find_map(last_words)
    {
        return Some(words);
    }
    let waiting = state.waiting.as_ref()?;
    let reason = waiting.reason.clone()?;
    let passing = matches!(reason.as_str(), "ContainerCreating" | "PodInitializing");
    (!passing).then(|| match &waiting.message {
        Some(message) => format!("{reason}: {message}"),
        None => reason,
    })
}

/// How the server ended and what it said last: Kubernetes keeps the end of its log.
fn last_words(ended: &core::ContainerStateTerminated) -> Option<String> {
    let said = ended.message.as_deref().unwrap_or_default().lines();
    let last = said.map(str::trim).rfind(|line| !line.is_empty());
    let code = ended.exit_code;
    Some(match last {
        Some(words) => format!("the server ended with code {code}: {words}"),
        None => format!("the server ended with code {code}"),
    })
}

/// The server's container: whoever adds others to the pod may put them first.
fn container(pod: &core::Pod) -> Option<&core::ContainerStatus> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    containers
        .iter()
        .find(|container| container.name == names::cluster::CONTAINER)
}

/// Starts after which a member that ends again and again is given up: with Kubernetes' growing pauses
/// between them, a little more than a minute.
const RESTARTS_MAX: i32 = 4;
/// The starts count from the pod's first day on, so they may all be long past. A member that served a moment ago is not
/// given up for them.
const NOT_READY_SECONDS_MIN: i64 = 60;
/// With this exit code the server says that its folder can not be used any more.
const EXIT_REPLACE: i32 = 3;

/// Only of a container that does not run now: what it ended with before no longer counts then.
pub(super) fn broken(pod: &core::Pod) -> Option<Broken> {
    let container = container(pod)?;
    let state = container.state.as_ref()?;
    let last = container.last_state.as_ref();
    let waiting = state.waiting.as_ref();
    let ended = state
        .terminated
        .as_ref()
        .or_else(|| waiting.and(last?.terminated.as_ref()))?;
    let crash_loops =
        waiting.and_then(|waiting| waiting.reason.as_deref()) == Some("CrashLoopBackOff");
    if ended.exit_code == EXIT_REPLACE {
        Some(Broken::Folder)
    } else if crash_loops
        && container.restart_count >= RESTARTS_MAX
        && not_ready_seconds(pod, ended)? >= NOT_READY_SECONDS_MIN
    {
        Some(Broken::Crashing)
    } else {
        None
    }
}

/// How long the pod had not been Ready when its container ended last; `None` if it is, or if nothing is known.
fn not_ready_seconds(pod: &core::Pod, ended: &core::ContainerStateTerminated) -> Option<i64> {
    let not_ready = condition(pod, "Ready").filter(|condition| condition.status == "False")?;
    let since = not_ready.last_transition_time.as_ref()?;
    Some(ended.finished_at.as_ref()?.0.as_second() - since.0.as_second())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Option<Time> {
        Some(Time(Timestamp::from_second(second).unwrap()))
    }

    /// A server that crash-loops: its pod is not Ready since `since`, and it ended last at `ended`.
    fn crashing(restarts: i32, since: i64, ended: i64) -> core::Pod {
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
            restart_count: restarts,
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

    fn server(pod: &mut core::Pod) -> &mut core::ContainerStatus {
        let containers = pod.status.as_mut().unwrap().container_statuses.as_mut();
        containers.unwrap().last_mut().unwrap()
    }

    #[test]
    fn who_ends_again_and_again_for_a_minute_is_broken() {
        assert_eq!(broken(&crashing(4, 100, 160)), Some(Broken::Crashing));
        assert_eq!(broken(&crashing(3, 100, 160)), None, "too few starts");
    }

    #[test]
    fn restarts_of_long_ago_do_not_count() {
        assert_eq!(broken(&crashing(40, 1_000_000, 1_000_010)), None);
        let mut ready = crashing(40, 100, 1_000_000);
        let conditions = ready.status.as_mut().unwrap().conditions.as_mut();
        conditions.unwrap()[0].status = "True".to_owned();
        assert_eq!(broken(&ready), None, "it is Ready");
        ready.status.as_mut().unwrap().conditions = None;
        assert_eq!(broken(&ready), None, "nothing is known");
    }

    #[test]
    fn a_folder_that_is_of_no_use_is_at_once() {
        let mut pod = crashing(1, 100, 101);
        let last = server(&mut pod).last_state.as_mut().unwrap();
        last.terminated.as_mut().unwrap().exit_code = EXIT_REPLACE;
        assert_eq!(broken(&pod), Some(Broken::Folder));
        server(&mut pod).state = None;
        assert_eq!(broken(&pod), None, "it may run");
    }

    #[test]
    fn other_containers_of_the_pod_are_not_the_server() {
        let mut pod = crashing(4, 100, 160);
        let sidecar = core::ContainerStatus {
            name: "a-proxy".to_owned(),
            state: Some(core::ContainerState::default()),
            ..core::ContainerStatus::default()
        };
        let containers = pod.status.as_mut().unwrap().container_statuses.as_mut();
        containers.unwrap().insert(0, sidecar);
        assert_eq!(broken(&pod), Some(Broken::Crashing));
        assert!(trouble(&pod).unwrap().ends_with("no such setting"));
        server(&mut pod).name = "another".to_owned();
        assert_eq!((broken(&pod), trouble(&pod)), (None, None));
    }
}
