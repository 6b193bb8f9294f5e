//! Delivers a result to the status of a `DEngineBenchmark`. The Job's ServiceAccount may only
//! `patch` that one object's status, so nothing here reads anything.

use std::time::Duration;

use anyhow::Context;
use backon::{ExponentialBuilder, Retryable};
use clap::Args;
use dengine_bench_model::results::Report;
use dengine_crds::benchmark::DEngineBenchmark;
use dengine_crds::names::managers;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, Config, Resource};
use serde_json::Value;

/// Longest time of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts after the first; with their pauses they last about two minutes, longer than an API
/// server takes to restart.
const RETRIES_MAX: usize = 15;

/// How the API server says that an applied field is not in the schema (structured-merge-diff), with
/// one line for each.
const UNDECLARED: &str = ": field not declared in schema";

/// Where reports are, each under its run's id.
const REPORTS: &str = ".status.runs.";

/// Where in Kubernetes a result goes.
#[derive(Args, Clone, Debug, Default)]
pub struct PostOptions {
    /// Post the result to the status of this DEngineBenchmark; needs --run-id
    #[arg(
        long,
        global = true,
        value_name = "NAMESPACE/NAME",
        requires = "run_id",
        value_parser = parse_report_to,
        help_heading = "Result"
    )]
    pub report_to: Option<ReportTo>,
    /// Key of the result in that status
    #[arg(
        long,
        global = true,
        value_name = "ID",
        requires = "report_to",
        help_heading = "Result"
    )]
    pub run_id: Option<String>,
}

/// The object that a result is posted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportTo {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

fn parse_report_to(text: &str) -> Result<ReportTo, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(ReportTo {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        _ => Err("expected NAMESPACE/NAME".to_owned()),
    }
}

/// Posts a result with the credentials of the pod, or of the user's kubeconfig.
///
/// # Errors
/// If the object is gone, the result is refused, or the API server stays unreachable.
pub async fn post(to: &ReportTo, run_id: &str, report: &Report) -> anyhow::Result<()> {
    let mut config = Config::infer()
        .await
        .context("no access to a Kubernetes API server")?;
    config.read_timeout = Some(ATTEMPT_TIMEOUT);
    config.connect_timeout = Some(ATTEMPT_TIMEOUT);
    let client = Client::try_from(config).context("cannot talk to the Kubernetes API server")?;
    post_with(client, to, run_id, report, backoff()).await
}

fn backoff() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(250))
        .with_max_delay(Duration::from_secs(10))
        .with_max_times(RETRIES_MAX)
        .with_jitter()
}

async fn post_with(
    client: Client,
    to: &ReportTo,
    run_id: &str,
    report: &Report,
    backoff: ExponentialBuilder,
) -> anyhow::Result<()> {
    // Untyped: only that the patch was accepted matters, not what the object looks like now.
    let resource = ApiResource::erase::<DEngineBenchmark>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client, &to.namespace, &resource);
    // Nobody else may own these fields; if someone does, the measurement wins.
    let params = PatchParams::apply(&managers::bench(run_id)).force();
    let send = |report: &Value| {
        let patch = Patch::Apply(body(&to.name, run_id, report));
        let (api, params) = (&api, &params);
        async move {
            let attempt = || api.patch_status(&to.name, params, &patch);
            attempt
                .retry(backoff)
                .when(may_pass)
                .notify(|error, pause| {
                    tracing::warn!(%error, ?pause, "posting the result failed");
                })
                .await
        }
    };
    let mut report = serde_json::to_value(report).expect("a report is plain data");
    // Of each object in it the API server names one such field at a time.
    let posted = loop {
        let posted = send(&report).await;
        let lacking = posted.as_ref().err().map(undeclared).unwrap_or_default();
        if !leave_out(&mut report, run_id, &lacking) {
            break posted;
        }
        tracing::warn!(
            ?lacking,
            "left out what the CRDs do not know: they are older"
        );
    };
    posted.map(|_| ()).map_err(in_words).with_context(|| {
        format!(
            "posting the result to the status of {}/{}",
            to.namespace, to.name
        )
    })
}

/// Fields for which the API server refuses the whole, by their places in it:
/// `.status.runs.ID.results[0].seed`.
fn undeclared(error: &kube::Error) -> Vec<String> {
    let kube::Error::Api(status) = error else {
        return Vec::new();
    };
    let lines = status.message.lines();
    let places = lines.filter_map(|line| line.split_once(UNDECLARED));
    let places = places.filter_map(|(words, _)| words.split_whitespace().next_back());
    places.map(str::to_owned).collect()
}

/// Takes these fields from the report of this run; says whether there was any to take.
fn leave_out(report: &mut Value, run_id: &str, places: &[String]) -> bool {
    let of_report = format!("{REPORTS}{run_id}.");
    let within = places
        .iter()
        .filter_map(|place| place.strip_prefix(&of_report));
    let mut any = false;
    for place in within {
        any |= take(report, place).is_some();
    }
    any
}

/// No field of a report has a dot or a bracket in its name.
fn take(report: &mut Value, place: &str) -> Option<Value> {
    let pointer = place.replace(['.', '['], "/").replace(']', "");
    let (parent, field) = match pointer.rsplit_once('/') {
        Some((parent, field)) => (report.pointer_mut(&format!("/{parent}"))?, field),
        None => (report, &*pointer),
    };
    parent.as_object_mut()?.remove(field)
}

fn body(name: &str, run_id: &str, report: &Value) -> Value {
    serde_json::json!({
        "apiVersion": DEngineBenchmark::api_version(&()),
        "kind": DEngineBenchmark::kind(&()),
        "metadata": { "name": name },
        "status": { "runs": { run_id: report } },
    })
}

/// Without the structure that the API server's refusals carry along.
fn in_words(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::anyhow!("{}: {}", status.code, status.message),
        other => other.into(),
    }
}

/// Whether another attempt could succeed. Permissions that were made a moment ago take a while to
/// be seen, so a refusal for lack of them is repeated too.
fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(_) if !undeclared(error).is_empty() => false,
        kube::Error::Api(status) => !matches!(status.code, 400 | 404 | 405 | 415 | 422),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kube::client::Body;
    use tonic::codegen::http::{Request, Response};

    use super::*;
    use crate::outcome::tests as sample;

    type Seen = Arc<Mutex<Vec<(String, String, serde_json::Value)>>>;

    /// An API server that answers with the given status codes and words, in turn, and keeps what it
    /// was sent.
    fn api_server(answers: Vec<(u16, &'static str)>) -> (Client, Seen) {
        let seen = Seen::default();
        let requests = Arc::clone(&seen);
        let answers = Arc::new(Mutex::new(answers.into_iter()));
        let service = tower::service_fn(move |request: Request<Body>| {
            let seen = Arc::clone(&requests);
            let (code, words) = answers.lock().unwrap().next().unwrap();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let line = format!("{} {}", head.method, head.uri);
                let kind = head.headers["content-type"].to_str().unwrap().to_owned();
                seen.lock()
                    .unwrap()
                    .push((line, kind, serde_json::from_slice(&body).unwrap()));
                let answer = serde_json::json!({
                    "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
                    "message": words, "reason": "scripted", "code": code,
                });
                let response = Response::builder().status(code);
                Ok::<_, tower::BoxError>(
                    response
                        .body(Body::from(answer.to_string().into_bytes()))
                        .unwrap(),
                )
            }
        });
        (Client::new(service, "default"), seen)
    }

    async fn post_to(codes: Vec<u16>) -> (anyhow::Result<()>, Seen) {
        let answers = codes.into_iter().map(|code| (code, "scripted"));
        post_report(&sample::report(), answers.collect()).await
    }

    async fn post_report(
        report: &Report,
        answers: Vec<(u16, &'static str)>,
    ) -> (anyhow::Result<()>, Seen) {
        let (client, seen) = api_server(answers);
        let to = ReportTo {
            namespace: "ns".to_owned(),
            name: "bench".to_owned(),
        };
        let backoff = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(1))
            .with_max_delay(Duration::from_millis(2))
            .with_max_times(3);
        (post_with(client, &to, "run-1", report, backoff).await, seen)
    }

    #[tokio::test]
    async fn one_server_side_apply_on_the_status_and_nothing_else() {
        let (posted, seen) = post_to(vec![200]).await;
        posted.unwrap();
        let seen = seen.lock().unwrap();
        let [(line, kind, body)] = &seen[..] else {
            panic!("{seen:?}")
        };
        let path = "/apis/dengine.io/v1alpha1/namespaces/ns/denginebenchmarks/bench/status";
        assert!(line.starts_with(&format!("PATCH {path}?")), "{line}");
        assert!(line.contains("fieldManager=dengine-bench-") && line.contains("force=true"));
        assert_eq!(kind, "application/apply-patch+yaml");
        assert_eq!(body["metadata"], serde_json::json!({ "name": "bench" }));
        assert_eq!(
            body["status"]["runs"]["run-1"]["results"][0]["requests"],
            1000
        );
        assert_eq!(
            body["status"].as_object().unwrap().len(),
            1,
            "only what the Job may write"
        );
    }

    #[tokio::test]
    async fn what_may_pass_is_tried_again_within_bounds() {
        let (posted, seen) = post_to(vec![500, 403, 429, 200]).await;
        posted.unwrap();
        assert_eq!(seen.lock().unwrap().len(), 4);

        let (posted, seen) = post_to(vec![503; 9]).await;
        assert!(format!("{:#}", posted.unwrap_err()).contains("ns/bench"));
        assert_eq!(seen.lock().unwrap().len(), 4);
    }

    /// The API server drops nothing of what is applied: it refuses the whole.
    #[tokio::test]
    async fn what_older_crds_lack_is_left_out() {
        let words = "failed to create typed patch object (ns/bench; dengine.io/v1alpha1, \
            Kind=DEngineBenchmark): errors:\n  .status.runs.run-1.leftOver: field not declared in \
            schema\n  .status.runs.run-1.results[0].seed: field not declared in schema";
        let report = Report {
            left_over: Some("5 keys".to_owned()),
            ..sample::report()
        };
        let (posted, seen) = post_report(&report, vec![(500, words), (200, "")]).await;
        posted.unwrap();
        let seen = seen.lock().unwrap();
        let run = |request: usize| &seen[request].2["status"]["runs"]["run-1"];
        assert_eq!(run(0)["leftOver"], "5 keys");
        let (second, rest) = (run(1).as_object().unwrap(), &run(1)["results"][0]);
        assert!(!second.contains_key("leftOver"));
        assert_eq!(rest["requests"], 1000);
        assert!(!rest.as_object().unwrap().contains_key("seed"));
    }

    /// `max` is one of several fields of that name, and those of one object are named one at a
    /// time.
    #[tokio::test]
    async fn only_what_is_named_is_left_out_however_often_it_is_refused() {
        let first = "failed to create typed patch object (ns/bench; dengine.io/v1alpha1, \
            Kind=DEngineBenchmark): .status.runs.run-1.results[0].latencyUs.max: field not \
            declared in schema";
        let second = "failed to create typed patch object (ns/bench; dengine.io/v1alpha1, \
            Kind=DEngineBenchmark): .status.runs.run-1.results[0].latencyUs.min: field not \
            declared in schema";
        let mut report = sample::report();
        let again = report.results[0].clone();
        report.results.push(again);
        let answers = vec![(500, first), (500, second), (200, "")];
        let (posted, seen) = post_report(&report, answers).await;
        posted.unwrap();
        let seen = seen.lock().unwrap();
        let results = &seen[2].2["status"]["runs"]["run-1"]["results"];
        let names = |place: usize| {
            let latency = results[place]["latencyUs"].as_object().unwrap();
            ["min", "avg", "max"].map(|name| latency.contains_key(name))
        };
        assert_eq!(names(0), [false, true, false]);
        assert_eq!(names(1), [true; 3], "of another object");
    }

    #[tokio::test]
    async fn what_is_refused_all_the_same_is_posted_no_third_time() {
        let words = ".status.runs.run-1.command: field not declared in schema";
        let answers = vec![(500, words), (500, words), (200, "")];
        let (posted, seen) = post_report(&sample::report(), answers).await;
        assert!(posted.is_err());
        assert_eq!(seen.lock().unwrap().len(), 2, "once more and no further");
        let elsewhere = ".status.runs: field not declared in schema";
        let answers = vec![(500, elsewhere), (200, "")];
        let (posted, seen) = post_report(&sample::report(), answers).await;
        assert!(posted.is_err());
        assert_eq!(seen.lock().unwrap().len(), 1, "nothing of the report's");
    }

    #[tokio::test]
    async fn an_object_that_is_gone_is_not_asked_for_again() {
        let (posted, seen) = post_to(vec![404, 200]).await;
        let error = format!("{:#}", posted.unwrap_err());
        assert_eq!(
            error,
            "posting the result to the status of ns/bench: 404: scripted"
        );
        assert_eq!(seen.lock().unwrap().len(), 1);
    }
}
