//! The task that sends spans to the collector. Nobody waits for it.

use std::time::{Duration, Instant};

use metrics::counter;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::trace::SpanExporter as Exporter;
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

use super::spans::{Clocks, spans};
use super::{Finished, Identity, names};
use crate::config::Config;

/// What the collector is told who sends.
const SERVICE_NAME: &str = "dengine";
/// Traces in one message: a few hundred KiB.
const TRACES_PER_EXPORT_MAX: usize = 256;
/// What is answered so soon after a message goes with the next one.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest that a message waits for the collector's answer, with tries again.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest that a connection to the collector takes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is said that the collector takes nothing.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// Why there is no way to a collector.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoCollector {
    #[error("tracing.endpoint can't be connected to: {0}")]
    Endpoint(#[from] tonic::transport::Error),
    /// A variable of OpenTelemetry's own asks for what was left out.
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}

/// The way to the collector that the settings name. It is connected to when there is something to
/// send.
pub(super) fn collector(config: &Config) -> Result<SpanExporter, NoCollector> {
    // The exporter bounds no call over a channel that it is given.
    let channel = Endpoint::from_shared(config.tracing.endpoint.clone())?
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(EXPORT_TIMEOUT)
        .http2_keep_alive_interval(EXPORT_TIMEOUT)
        .keep_alive_timeout(EXPORT_TIMEOUT)
        .connect_lazy();
    let mut exporter = SpanExporter::builder()
        .with_tonic()
        .with_channel(channel)
        .with_timeout(EXPORT_TIMEOUT)
        .build()?;
    let member = config.name.clone();
    let resource = Resource::builder_empty()
        .with_service_name(SERVICE_NAME)
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", member.clone()),
            KeyValue::new("dengine.member.name", member),
        ]);
    exporter.set_resource(&resource.build());
    Ok(exporter)
}

/// Makes spans of writes and sends them.
pub(super) struct Export<E, I> {
    exporter: E,
    identity: I,
    /// How long a message may take.
    patience: Duration,
    outage: Outage,
}

impl<E: Exporter, I: Fn() -> Identity> Export<E, I> {
    pub(super) fn new(exporter: E, identity: I) -> Self {
        Self {
            exporter,
            identity,
            patience: EXPORT_TIMEOUT,
            outage: Outage::default(),
        }
    }

    /// Until `stop` is cancelled; what is queued then is sent.
    pub(super) async fn run(mut self, mut queue: Receiver<Finished>, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(TRACES_PER_EXPORT_MAX);
        loop {
            let count = tokio::select! {
                biased;
                () = stop.cancelled(), if !queue.is_closed() => {
                    queue.close();
                    continue;
                }
                count = queue.recv_many(&mut batch, TRACES_PER_EXPORT_MAX) => count,
            };
            if count == 0 {
                return;
            }
            self.send(&mut batch).await;
            if count < TRACES_PER_EXPORT_MAX {
                // Meanwhile others end, and share a message.
                let _ = tokio::time::timeout(PAUSE, stop.cancelled()).await;
            }
        }
    }

    async fn send(&mut self, batch: &mut Vec<Finished>) {
        let (clocks, identity, count) = (Clocks::now(), (self.identity)(), batch.len() as u64);
        let spans = batch.drain(..).flat_map(|it| spans(&it, clocks, identity));
        let export = self.exporter.export(spans.collect());
        let exported = tokio::time::timeout(self.patience, export).await;
        match exported.unwrap_or(Err(OTelSdkError::Timeout(self.patience))) {
            Ok(()) => {
                counter!(names::TRACES_SENT_TOTAL).increment(count);
                if self.outage.is_over() {
                    tracing::info!("the collector takes spans again");
                }
            }
            Err(error) => {
                counter!(names::TRACES_DROPPED_TOTAL).increment(count);
                if self.outage.is_worth_a_line(Instant::now()) {
                    tracing::warn!(%error, "the collector takes no spans; they are dropped");
                }
            }
        }
    }
}

/// A collector that takes nothing: when that was said last.
#[derive(Default)]
struct Outage(Option<Instant>);

impl Outage {
    fn is_worth_a_line(&mut self, now: Instant) -> bool {
        let is_due = self.0.is_none_or(|said| now - said >= LINE_EVERY);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }

    /// Whether there was one.
    fn is_over(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use dengine_types::{ClusterId, MemberId};
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::SpanData;
    use tokio::sync::mpsc;
    use tonic::Code;

    use super::super::{Parent, Tracer};
    use super::*;

    /// Keeps what it is sent, or refuses it.
    #[derive(Clone, Debug, Default)]
    struct Collected {
        spans: Arc<Mutex<Vec<SpanData>>>,
        refuses: bool,
        /// It takes this one, and never answers.
        hangs: Arc<AtomicBool>,
    }

    impl Exporter for Collected {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            if self.hangs.swap(false, Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.refuses {
                return Err(OTelSdkError::InternalFailure("away".into()));
            }
            self.spans.lock().unwrap().extend(batch);
            Ok(())
        }
    }

    fn tracer(collected: Collected) -> Tracer {
        let (queue, finished) = mpsc::channel(1_000);
        let stop = CancellationToken::new();
        let export = Export {
            patience: Duration::from_millis(50),
            ..Export::new(collected, || (ClusterId(1), MemberId(1)))
        };
        let export = tokio::spawn(export.run(finished, stop.clone()));
        Tracer::with(1.0, queue, stop, Some(export))
    }

    fn write(tracer: &Tracer) {
        let parent = || Parent {
            span: None,
            passed_on: false,
        };
        let begun = tracer.begin("Put", Instant::now(), parent);
        begun.expect("all are sampled").answered(Code::Ok);
    }

    #[tokio::test]
    async fn what_is_queued_when_the_member_stops_is_sent() {
        let collected = Collected::default();
        let tracer = tracer(collected.clone());
        for _ in 0..2 * TRACES_PER_EXPORT_MAX + 1 {
            write(&tracer);
        }
        tracer.end(Duration::from_secs(60)).await;
        let sent = collected.spans.lock().unwrap().len();
        assert_eq!(sent, 2 * TRACES_PER_EXPORT_MAX + 1);
        // Later ones are dropped, and nobody waits.
        write(&tracer);
        tracer.end(Duration::from_secs(60)).await;
    }

    #[tokio::test]
    async fn a_collector_that_takes_nothing_holds_up_nobody() {
        let tracer = tracer(Collected {
            refuses: true,
            ..Collected::default()
        });
        write(&tracer);
        tracer.end(Duration::from_secs(60)).await;
    }

    #[tokio::test]
    async fn a_collector_that_did_not_answer_once_is_sent_what_comes_later() {
        let collected = Collected::default();
        collected.hangs.store(true, Ordering::Relaxed);
        let tracer = tracer(collected.clone());
        write(&tracer);
        while collected.hangs.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
        write(&tracer);
        tracer.end(Duration::from_secs(60)).await;
        let sent = collected.spans.lock().unwrap();
        let writes = sent.iter().filter(|it| it.name.ends_with("/Put")).count();
        assert_eq!(writes, 1, "the first is dropped");
    }

    #[test]
    fn an_outage_is_said_once_in_a_while_and_when_it_is_over() {
        let (mut outage, now) = (Outage::default(), Instant::now());
        assert!(!outage.is_over());
        let lines = (0..180).map(|seconds| now + Duration::from_secs(seconds));
        let lines = lines.filter(|at| outage.is_worth_a_line(*at)).count();
        assert_eq!(lines, 3);
        assert!(outage.is_over() && !outage.is_over());
    }
}
