//! What threads share through atomics.

mod answers;
mod lease;
mod published;
mod store;

/// Tries every order with at most three preemptions, which is what loom's authors advise: more find hardly more.
fn every_order(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}
