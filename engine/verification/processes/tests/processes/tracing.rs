//! Traces of writes: what a collector of OpenTelemetry is sent, by which members.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dengine_protocol::trace::TraceParent;
use dengine_protocol::v1::PutRequest;
use dengine_protocol::v1::kv_client::KvClient;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::harness::{Cluster, Member, eventually};

/// What a put's caller says of its own span.
const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00";

/// Takes spans as a collector does, and keeps each with the name of the member that sent it.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<(String, Span)>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of_member in request.into_inner().resource_spans {
            let attributes = of_member.resource.unwrap_or_default().attributes;
            assert_eq!(text(&attributes, "service.name"), "dengine");
            let member = text(&attributes, "dengine.member.name");
            let spans = of_member.scope_spans.into_iter().flat_map(|it| it.spans);
            let spans = spans.map(|span| (member.clone(), span));
            self.0.lock().unwrap().extend(spans);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Serves it; the address is what members are told.
    async fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let collector = Self::default();
        let service = TraceServiceServer::new(collector.clone());
        let incoming = TcpListenerStream::new(listener);
        tokio::spawn(
            Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming),
        );
        (collector, endpoint)
    }

    /// By name, the spans that a member sent.
    fn of(&self, member: &str) -> HashMap<String, Span> {
        let spans = self.0.lock().unwrap();
        let own = spans.iter().filter(|(of, _)| of == member);
        own.map(|(_, span)| (span.name.clone(), span.clone()))
            .collect()
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|it| it.key == key);
    let value = found.and_then(|it| it.value.clone()?.value);
    match value {
        Some(Value::StringValue(text)) => text,
        other => panic!("{key} is {other:?}"),
    }
}

/// A call of its own, for which a caller can say that it is traced.
async fn put(member: &Member, key: &str, traceparent: Option<&'static str>) {
    let address = format!("http://{}", member.address());
    let mut request = Request::new(PutRequest {
        key: key.to_owned().into(),
        value: "v".into(),
        ..PutRequest::default()
    });
    if let Some(traceparent) = traceparent {
        let traceparent = traceparent.parse().unwrap();
        request.metadata_mut().insert("traceparent", traceparent);
    }
    let mut kv = KvClient::connect(address).await.unwrap();
    kv.put(request).await.unwrap();
}

async fn traced(endpoint: &str, sample_ratio: &str) -> Cluster {
    Cluster::form_with(3, |member| {
        member.add_args(["--tracing-endpoint", endpoint]);
        member.add_args(["--tracing-sample-ratio", sample_ratio]);
    })
    .await
}

/// Each within its parent, up to the caller's.
fn is_child(child: &Span, parent: &Span) {
    assert_eq!(child.parent_span_id, parent.span_id, "{}", child.name);
    assert_eq!(child.trace_id, parent.trace_id, "{}", child.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_through_a_follower_is_one_trace_with_the_spans_of_both_members() {
    let (collector, endpoint) = Collector::start().await;
    let cluster = traced(&endpoint, "0").await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    put(&cluster.members[follower], "unsampled", Some(UNSAMPLED)).await;
    put(&cluster.members[follower], "not said", None).await;
    put(&cluster.members[follower], "nonsense", Some("00-nonsense")).await;
    put(&cluster.members[follower], "sampled", Some(SAMPLED)).await;
    let (whole, forward) = ("dengine.v1.Kv/Put", "forward");
    let (at_leader, at_follower) = eventually("both members send their spans", || async {
        let leader = collector.of(&format!("m{leader}"));
        let follower = collector.of(&format!("m{follower}"));
        (leader.contains_key(whole) && follower.contains_key(whole)).then_some((leader, follower))
    })
    .await;

    let caller = TraceParent::parse(SAMPLED).unwrap();
    let passed_on = &at_follower[whole];
    assert_eq!(passed_on.trace_id, caller.trace_id);
    assert_eq!(passed_on.parent_span_id, caller.span_id);
    is_child(&at_follower[forward], passed_on);
    assert_eq!(at_follower.len(), 2, "{:?}", at_follower.keys());

    let led = &at_leader[whole];
    is_child(led, &at_follower[forward]);
    for stage in [
        "write_wait",
        "replica_turn",
        "commit",
        "apply_wait",
        "apply",
        "answer",
    ] {
        let span = &at_leader[stage];
        is_child(span, led);
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        assert!(
            span.start_time_unix_nano >= led.start_time_unix_nano,
            "{stage}"
        );
        assert!(span.end_time_unix_nano <= led.end_time_unix_nano, "{stage}");
    }
    for (place, span) in [(leader, led), (follower, passed_on)] {
        let status = cluster.members[place].status().await;
        let id = text(&span.attributes, "dengine.member.id");
        assert_eq!(id, status.member_id.to_string());
    }
    let ids = collector.0.lock().unwrap();
    let of_others = ids.iter().filter(|(_, it)| it.trace_id != caller.trace_id);
    assert_eq!(of_others.count(), 0, "only one of four puts was sampled");
}

/// What comes in frames has no header for each call.
#[tokio::test(flavor = "multi_thread")]
async fn writes_of_a_stream_are_traced_by_ratio_and_the_last_are_sent_when_the_member_stops() {
    let (collector, endpoint) = Collector::start().await;
    let mut cluster = traced(&endpoint, "1").await;
    let follower = cluster.follower().await;
    let client = cluster.members[follower].client().await;
    client.put("k", "v").await.unwrap();
    drop(client);
    for member in &mut cluster.members {
        member.terminate();
    }
    let spans = collector.0.lock().unwrap();
    let whole: Vec<_> = spans
        .iter()
        .filter(|(_, span)| span.name == "dengine.v1.Kv/Put")
        .collect();
    let forwards = spans.iter().filter(|(_, span)| span.name == "forward");
    // One of the leader alone, if the client found it before it wrote.
    assert_eq!(whole.len(), 1 + forwards.count(), "{whole:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_setting_nothing_is_sent() {
    let (collector, endpoint) = Collector::start().await;
    // What programs of OpenTelemetry's own kit would go by.
    let mut cluster = Cluster::form_with(1, |member| {
        member.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str());
    })
    .await;
    put(&cluster.members[0], "k", Some(SAMPLED)).await;
    cluster.members[0].terminate();
    assert!(collector.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_costs_spans_and_nothing_else() {
    let nowhere = format!("http://127.0.0.1:{}", dengine_testkit::free_port());
    let mut cluster = traced(&nowhere, "1").await;
    for n in 0..20 {
        put(&cluster.members[0], &format!("k{n}"), None).await;
    }
    let said = "the collector takes no spans";
    cluster.members[0].says(said).await;
    let ended = cluster.members[0].terminate();
    assert!(ended.success(), "{ended}");
    let logged = cluster.members[0].logged();
    assert_eq!(logged.matches(said).count(), 1, "{logged}");
}
