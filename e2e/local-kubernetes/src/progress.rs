//! Shows a person what is being done: a spinner with a clock on a terminal, one line per change
//! elsewhere.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a long step says where it is, if nobody watches it live.
const DETAIL_INTERVAL: Duration = Duration::from_secs(20);

/// One thing being done. Dropped without [`ProgressStep::done`] it failed.
#[derive(Debug)]
pub struct ProgressStep {
    bar: ProgressBar,
    title: String,
    started: Instant,
    last_note: String,
    last_detail: Instant,
    finished: bool,
}

impl ProgressStep {
    /// Starts to show a step.
    #[must_use]
    pub fn start(title: impl Into<String>) -> Self {
        let title = title.into();
        let bar = if on_terminal() {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::hidden()
        };
        bar.set_style(
            ProgressStyle::with_template("{spinner:.cyan} {prefix} {elapsed:.dim} {wide_msg:.dim}")
                .expect("the template is a constant that a test renders"),
        );
        bar.set_prefix(title.clone());
        bar.enable_steady_tick(Duration::from_millis(120));
        if !on_terminal() {
            say(format_args!("… {title}"));
        }
        Self {
            bar,
            title,
            started: Instant::now(),
            last_note: String::new(),
            last_detail: Instant::now(),
            finished: false,
        }
    }

    /// Says what the step waits for; says nothing when that is what it said last.
    pub fn note(&mut self, note: impl Display) {
        let note = note.to_string();
        if note == self.last_note {
            return;
        }
        if !on_terminal() {
            say(format_args!("    {note}"));
        }
        self.bar.set_message(note.clone());
        self.last_note = note;
    }

    /// Says how far a long step is: on a terminal at once, elsewhere now and then.
    pub fn detail(&mut self, detail: impl Display) {
        if on_terminal() {
            self.bar.set_message(detail.to_string());
        } else if self.last_detail.elapsed() > DETAIL_INTERVAL {
            self.last_detail = Instant::now();
            say(format_args!("    {detail}"));
        }
    }

    /// Ends the step well.
    pub fn done(mut self, outcome: impl Display) {
        self.finished = true;
        self.bar.finish_and_clear();
        let outcome = outcome.to_string();
        let outcome = if outcome.is_empty() {
            outcome
        } else {
            format!(": {outcome}")
        };
        say(format_args!(
            "✓ {}{outcome} ({})",
            self.title,
            seconds(self.started.elapsed())
        ));
    }
}

impl Drop for ProgressStep {
    fn drop(&mut self) {
        if !self.finished {
            self.bar.finish_and_clear();
            say(format_args!(
                "✗ {} ({})",
                self.title,
                seconds(self.started.elapsed())
            ));
        }
    }
}

/// A duration as people read it: `0.4 s`, `12 s`, `3 min 5 s`.
#[must_use]
pub fn seconds(duration: Duration) -> String {
    let whole = duration.as_secs();
    match whole {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..120 => format!("{whole} s"),
        _ => format!("{} min {} s", whole / 60, whole % 60),
    }
}

fn on_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Standard error, where a closed pipe is no reason to stop working.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_like_speech() {
        assert_eq!(seconds(Duration::from_millis(420)), "0.4 s");
        assert_eq!(seconds(Duration::from_secs(12)), "12 s");
        assert_eq!(seconds(Duration::from_secs(185)), "3 min 5 s");
    }

    #[test]
    fn a_step_renders_its_template() {
        let mut step = ProgressStep::start("testing");
        step.note("waiting for nothing");
        step.done("fine");
    }
}
