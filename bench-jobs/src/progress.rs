//! What a person at a terminal sees while a run lasts. Draws nothing anywhere else.

use std::{borrow::Cow, time::Duration};

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
            .with_style(style())
            .with_message(Cow::from(self.phase.clone()));
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

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg:>12} {bar:30} {percent:>3} %  {human_pos}  {per_sec}  {eta}")
        .expect("the template is valid")
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
