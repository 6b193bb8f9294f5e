//! Every pod but the first: carries out what that one orders.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::line::{self, Answer, Ended, Line, Order};
use super::{AFTER_THE_FIRST, named};
use crate::cli::{Cli, Task};
use crate::cut::Cut;
use crate::load::Part;
use crate::session::Session;
use crate::target::Target;

/// Between two tries to reach the first pod.
const PAUSE: Duration = Duration::from_millis(250);
/// Longest time of one try.
const TRY_LIMIT: Duration = Duration::from_secs(5);
/// Orders that wait.
const QUEUE: usize = 16;
/// How long the last words may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Takes part in a run that another pod leads, until that one says that it is over.
///
/// # Errors
/// If that pod cannot be reached or refuses, is lost, or this one has to end before.
pub async fn follow(cli: &Cli) -> anyhow::Result<()> {
    // The first pod's own time begins when the last one has joined.
    let longest = cli.options.pods.join_timeout + cli.options.timeout + AFTER_THE_FIRST;
    let (cut, clock) = Cut::once_started(longest)?;
    let joining = timeout(cli.options.pods.join_timeout, join(cli));
    let joining = async {
        joining
            .await
            .context("the first pod was not reached in time")?
    };
    let line = cut.unless(joining).await?;
    clock.start();
    let session = Session::new(cli, cut.clone(), None)?;
    let pods = &cli.options.pods;
    let follower = Follower {
        session,
        tasks: cli.tasks(),
        pods: pods.pods,
        index: pods.index(),
        line: Orders::of(line),
        target: None,
    };
    follower.run(&cut).await
}

/// Until the first pod lets this one take part.
async fn join(cli: &Cli) -> anyhow::Result<Line<Answer, Order>> {
    let pods = &cli.options.pods;
    let first = pods.first_pod.as_deref().unwrap_or_default();
    loop {
        // Its name may not be known yet, and it may not listen yet.
        let stream = match timeout(TRY_LIMIT, TcpStream::connect(first)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::info!(%error, first, "the first pod is not there yet");
                sleep(PAUSE).await;
                continue;
            }
            Err(_) => continue,
        };
        let mut line = Line::over(stream)?;
        line.send(Answer::Hello {
            index: pods.index(),
            flags: cli.measured_alike(),
            node: cli.options.result.node.clone(),
        });
        match line.next().await {
            Ok((_, Order::Welcome)) => return Ok(line),
            Ok((_, Order::Refused { why })) => bail!("the first pod refuses this one: {why}"),
            Ok((_, order)) => bail!("the first pod answered {order:?}"),
            Err(why) => tracing::info!(why, "the first pod is not there yet"),
        }
        sleep(PAUSE).await;
    }
}

/// What the first pod says, and the words by which a load has to end at once, which overtake it.
struct Orders {
    answer: mpsc::UnboundedSender<Answer>,
    queue: mpsc::Receiver<Result<Order, String>>,
    stopped: watch::Receiver<Option<String>>,
    passing_on: JoinHandle<()>,
}

impl Orders {
    fn of(mut line: Line<Answer, Order>) -> Self {
        let (answer, mut answers) = mpsc::unbounded_channel();
        let (ordered, queue) = mpsc::channel(QUEUE);
        let (stop, stopped) = watch::channel(None);
        let passing_on = tokio::spawn(async move {
            loop {
                let order = tokio::select! {
                    order = line.next() => order,
                    answer = answers.recv() => match answer {
                        Some(answer) => {
                            line.send(answer);
                            continue;
                        }
                        None => break,
                    },
                };
                let order = order.map(|(_, order)| order);
                match &order {
                    Ok(Order::Load { .. }) => stop.send_replace(None),
                    Ok(Order::Stop { why }) => stop.send_replace(Some(why.clone())),
                    Err(why) => stop.send_replace(Some(format!("pod 0 was lost: {why}"))),
                    Ok(_) => None,
                };
                let ended = order.is_err();
                if ordered.send(order).await.is_err() || ended {
                    break;
                }
            }
            line.close().await;
        });
        Self {
            answer,
            queue,
            stopped,
            passing_on,
        }
    }

    /// Sends what waits, and ends.
    async fn close(self) {
        let Self {
            answer,
            queue: _queue,
            passing_on,
            ..
        } = self;
        drop(answer);
        let _ = timeout(CLOSE_LIMIT, passing_on).await;
    }

    fn send(&self, answer: Answer) {
        let _ = self.answer.send(answer);
    }

    async fn next(&mut self) -> Result<Order, String> {
        let order = self.queue.recv().await;
        order.unwrap_or_else(|| Err("its connection ended".to_owned()))
    }
}

struct Follower<'a> {
    session: Session<'a>,
    tasks: Vec<Task>,
    pods: u32,
    index: u32,
    line: Orders,
    /// Of the workload that was connected for last.
    target: Option<Target>,
}

impl Follower<'_> {
    async fn run(mut self, cut: &Cut) -> anyhow::Result<()> {
        let done = self.carry_out_all(cut).await;
        if let Err(error) = &done {
            let why = format!("{error:#}");
            self.line.send(Answer::Leaving { why });
        }
        self.line.close().await;
        done
    }

    async fn carry_out_all(&mut self, cut: &Cut) -> anyhow::Result<()> {
        loop {
            let order = tokio::select! {
                order = self.line.next() => order,
                why = cut.reason() => bail!(why),
            };
            let order =
                order.map_err(|why| anyhow::anyhow!("{} was lost: {why}", named(0, self.pods)))?;
            let done = match order {
                Order::Connect {
                    task,
                    endpoints,
                    folder,
                } => self.connect(task, &endpoints, folder).await,
                Order::Settle { task, revision } => self.settle(task, revision).await,
                Order::Load { task, repetition } => {
                    let ended = self.load(task, repetition).await?;
                    if cut.is_over() {
                        bail!(cut.reason().await);
                    }
                    self.line.send(Answer::Ended(Box::new(ended)));
                    continue;
                }
                Order::Bye => return Ok(()),
                // Of a load that had ended already.
                Order::Go | Order::Stop { .. } => continue,
                Order::Welcome | Order::Refused { .. } => bail!("the first pod begins again"),
            };
            self.line.send(match done {
                Ok(()) => Answer::Done,
                Err(error) => Answer::Failed {
                    why: format!("{error:#}"),
                },
            });
        }
    }

    /// This pod's part of a workload.
    fn part(&self, task: usize) -> anyhow::Result<(Task, Part)> {
        let task = self.tasks.get(task);
        let task = task.context("the first pod orders a workload that is not there")?;
        let part = Part::of_pod(self.index, self.pods, &task.shape);
        let part = part.context("the first pod orders a workload that comes from others")?;
        Ok((task.clone(), part))
    }

    async fn connect(
        &mut self,
        task: usize,
        endpoints: &[String],
        folder: String,
    ) -> anyhow::Result<()> {
        let (task, part) = self.part(task)?;
        self.session.lies_in(Bytes::from(folder));
        let connect = self.session.connect(&task.shape, endpoints, part);
        self.target = Some(Target::connect(&connect).await.context("connecting")?);
        Ok(())
    }

    async fn settle(&mut self, task: usize, revision: u64) -> anyhow::Result<()> {
        let (task, part) = self.part(task)?;
        let target = self.target.as_ref().context("not connected")?;
        self.session
            .settle(target, &task.shape, part, revision)
            .await
    }

    async fn load(&mut self, task: usize, repetition: Option<u64>) -> anyhow::Result<Ended> {
        let (task, part) = self.part(task)?;
        let target = self.target.as_ref().context("not connected")?;
        let stopped = self.line.stopped.clone();
        let mut told = None;
        let answer = self.line.answer.clone();
        let begin = async {
            let _ = answer.send(Answer::Ready);
            match self.line.next().await? {
                Order::Go => {
                    told = Some(Instant::now());
                    let _ = answer.send(Answer::Begun);
                    Ok(())
                }
                Order::Stop { why } => Err(why),
                order => Err(format!(
                    "the first pod ordered {order:?} instead of a start"
                )),
            }
        };
        let stop = line::lost(stopped);
        let (measured, cpu) = self
            .session
            .follow_load(&task.shape, part, repetition, target, begin, stop)
            .await;
        let late = measured.began.zip(told);
        Ok(Ended {
            latency_us: line::packed(&measured.latency_us),
            errors: measured.errors,
            first_error: measured.first_error,
            late: late.map_or(Duration::ZERO, |(began, told)| began - told),
            elapsed: measured.elapsed,
            revision: measured.revision,
            cpu,
        })
    }
}
