//! What a person at a terminal sees while a run lasts. Draws nothing anywhere else.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinHandle;

const REDRAW: Duration = Duration::from_millis(100);

/// Names the phase that is shown.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Such as "measuring".
    pub phase: String,
}

impl Progress {
    /// Shows how far a phase is, until the guard is dropped.
    #[must_use]
    pub fn follow(&self, total: u64, finished: impl Fn() -> u64 + Send + 'static) -> Shown {
        // Hidden by indicatif itself if the standard error is no terminal.
        let bar = ProgressBar::new(total)
            .with_style(style(
                "{msg:>12} {bar:30} {percent:>3} %  {human_pos}  {per_sec}  {eta}",
            ))
            .with_message(Cow::from(self.phase.clone()));
        Self::draw(bar, finished)
    }

    /// Shows how much of a time has passed, until the guard is dropped.
    #[must_use]
    pub fn follow_time(&self, time: Duration) -> Shown {
        let started = Instant::now();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let bar = ProgressBar::new(millis(time))
            .with_style(style("{msg:>12} {bar:30} {percent:>3} %  {eta}"))
            .with_message(Cow::from(self.phase.clone()));
        Self::draw(bar, move || millis(started.elapsed()))
    }

    fn draw(bar: ProgressBar, finished: impl Fn() -> u64 + Send + 'static) -> Shown {
        if bar.is_hidden() {
            return Shown(None);
        }
        let drawn = bar.clone();
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(REDRAW);
            loop {
                ticks.tick().await;
                drawn.set_position(finished());
            }
        });
        Shown(Some((bar, task)))
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is valid")
}

/// Removes the bar when dropped.
pub struct Shown(Option<(ProgressBar, JoinHandle<()>)>);

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some((bar, task)) = self.0.take() {
            task.abort();
            bar.finish_and_clear();
        }
    }
}
