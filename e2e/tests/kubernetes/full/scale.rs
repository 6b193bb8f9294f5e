//! The whole way up and down.

use crate::load::{Load, connect};
use crate::scale::{How, scale};
use crate::support::test;

#[tokio::test]
async fn one_three_five_three_one_loses_nothing() {
    test("scale-far", async |world| {
        world.make_cluster("s", 1).await?;
        let load = Load::start(&connect(world, "s").await?).await?;
        for (replicas, how) in [
            (3, How::Kubectl),
            (5, How::Edit),
            (3, How::Kubectl),
            (1, How::Edit),
        ] {
            scale(world, &load, replicas, how).await?;
        }
        load.check(world, "s").await?;
        world.print_events("s").await
    })
    .await;
}
