//! The pods of a Job: why one does not run, and why there is no result of several. Pure.

use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::ResourceExt;

use super::resources::job;

/// Set by Kubernetes on each pod of an indexed Job.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The tool ends with one of these if it says itself how the run ended.
const EXIT_CODES: std::ops::RangeInclusive<i32> = 0..=4;

/// What to do about a pod that was lost.
const ADVICE: &str = "all pods need room at once, and enough memory (spec.resources, \
    spec.scheduling); change runId to run again";

/// Why a pod does not run, of as many as there should be; the first that does not.
pub(super) fn trouble(pods: &[Pod], wanted: u32) -> Option<String> {
    let troubled = |pod: &Pod| Some((index(pod), of_one(pod)?));
    let all = pods.iter().filter_map(troubled);
    let (index, trouble) = all.min_by_key(|(index, _)| *index)?;
    Some(match wanted {
        1 => format!("its pod {trouble}"),
        _ => format!("its pod {} of {wanted} {trouble}", index.unwrap_or(0)),
    })
}

/// It cannot be scheduled, or its image cannot be pulled.
fn of_one(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let unscheduled = conditions.find(|c| c.type_ == "PodScheduled" && c.status == "False");
    if let Some(unscheduled) = unscheduled {
        let message = unscheduled.message.as_deref().unwrap_or("not scheduled");
        return Some(format!("cannot be scheduled: {message}"));
    }
    let waiting = state(pod)?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    let passing = matches!(reason, "ContainerCreating" | "PodInitializing");
    let message = waiting.message.as_deref().unwrap_or("no message");
    (!passing).then(|| format!("does not start: {reason}: {message}"))
}

/// What became of the first pod, which reports the result of all, if it cannot report any more:
/// whenever another one is lost, the first says so in its result.
pub(super) fn lost(pods: &[Pod], wanted: u32) -> Option<String> {
    let first = pods.iter().find(|pod| index(pod) == Some(0));
    let what = match first {
        None => "is gone, or was never there".to_owned(),
        Some(pod) => end(pod)?,
    };
    Some(format!(
        "pod 0 of {wanted}, which reports for all, {what}; {ADVICE}"
    ))
}

/// How a pod ended without a word of its own, or that it never ran.
fn end(pod: &Pod) -> Option<String> {
    let name = pod.name_any();
    let status = pod.status.as_ref();
    let reason = status.and_then(|status| status.reason.as_deref());
    if let Some(reason) = reason {
        let message = status.and_then(|status| status.message.as_deref());
        let message = message.unwrap_or("no message");
        return Some(format!("({name}) was lost: {reason}: {message}"));
    }
    let ended = state(pod).and_then(|state| state.terminated.as_ref());
    match ended {
        Some(ended) if EXIT_CODES.contains(&ended.exit_code) => None,
        Some(ended) => {
            let reason = ended.reason.as_deref().unwrap_or("no reason");
            let code = ended.exit_code;
            Some(format!("({name}) was lost: {reason}, exit code {code}"))
        }
        None if status.is_some_and(|it| it.phase.as_deref() == Some("Running")) => None,
        None => {
            let trouble = of_one(pod).unwrap_or_else(|| "did not run".to_owned());
            Some(format!("({name}) came too late: it {trouble}"))
        }
    }
}

fn index(pod: &Pod) -> Option<u32> {
    pod.annotations().get(INDEX)?.parse().ok()
}

/// Of the container of the tool.
fn state(pod: &Pod) -> Option<&ContainerState> {
    let mut containers = pod.status.as_ref()?.container_statuses.iter().flatten();
    let tool = containers.find(|container| container.name == job::CONTAINER)?;
    tool.state.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(index: u32, status: &str) -> Pod {
        let pod = format!(
            "{{metadata: {{name: p-{index}, annotations: {{{INDEX}: '{index}'}}}}, status: \
             {status}}}"
        );
        serde_saphyr::from_str(&pod).unwrap()
    }

    fn container(state: &str) -> String {
        format!(
            "{{phase: Any, containerStatuses: [{{name: dengine-bench, restartCount: 0, image: '', \
             imageID: '', ready: false, state: {state}}}]}}"
        )
    }

    fn waiting(reason: &str) -> String {
        container(&format!("{{waiting: {{reason: {reason}, message: why}}}}"))
    }

    fn ended(code: i32, reason: &str) -> String {
        let terminated = format!("{{exitCode: {code}, reason: {reason}}}");
        container(&format!("{{terminated: {terminated}}}"))
    }

    const PENDING: &str =
        "{conditions: [{type: PodScheduled, status: 'False', message: no nodes}]}";

    #[test]
    fn a_pods_status_shows_why_it_does_not_run() {
        let message = |status: &str| trouble(&[pod(0, status)], 1);
        assert_eq!(
            message(&waiting("ImagePullBackOff")).as_deref(),
            Some("its pod does not start: ImagePullBackOff: why")
        );
        assert_eq!(message(&waiting("ContainerCreating")), None);
        assert_eq!(
            message(PENDING).as_deref(),
            Some("its pod cannot be scheduled: no nodes")
        );
        assert_eq!(message("{}"), None);
    }

    #[test]
    fn of_several_pods_the_one_that_does_not_run_is_named() {
        let pods = [pod(2, PENDING), pod(0, "{}"), pod(1, PENDING)];
        let words = "its pod 1 of 3 cannot be scheduled: no nodes";
        assert_eq!(trouble(&pods, 3).as_deref(), Some(words));
    }

    #[test]
    fn without_a_result_the_first_pod_is_lost_unless_it_ended_by_itself() {
        let lost = |first: &str| lost(&[pod(1, "{}"), pod(0, first)], 3);
        let said = |first: &str, words: &str| {
            let message = lost(first).unwrap_or_default();
            assert!(message.starts_with("pod 0 of 3, "), "{message}");
            assert!(message.contains(words), "{message}");
            assert!(message.contains("change runId"), "{message}");
        };
        said(
            &ended(137, "OOMKilled"),
            "(p-0) was lost: OOMKilled, exit code 137",
        );
        said(
            "{phase: Failed, reason: Evicted, message: disk}",
            "was lost: Evicted: disk",
        );
        said(PENDING, "came too late: it cannot be scheduled: no nodes");
        assert_eq!(lost(&ended(1, "Error")), None, "its log says why");
        assert_eq!(lost("{phase: Running}"), None);
        let gone = super::lost(&[pod(1, "{}")], 3).unwrap();
        assert!(gone.contains("is gone, or was never there"), "{gone}");
    }
}
