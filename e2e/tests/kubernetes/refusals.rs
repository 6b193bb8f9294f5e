//! The real API server refuses each bad resource of `crds/tests/invalid` with the message of its
//! first line, and takes each good one of `crds/tests/valid`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use dengine_e2e::product;
use dengine_local_kubernetes::shell;

use crate::support::{World, test};

#[tokio::test]
async fn bad_resources_are_refused_with_their_message() {
    test("refusals", async |world| {
        let files = files("invalid")?;
        ensure!(!files.is_empty(), "crds/tests/invalid is empty");
        let wrong: Vec<String> = files
            .iter()
            .filter_map(|file| refused(world, file).err())
            .map(|error| format!("{error:#}"))
            .collect();
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn good_resources_are_taken() {
    test("acceptance", async |world| {
        for file in files("valid")? {
            let text = fs_err::read_to_string(&file)?;
            send(world, &text)
                .flatten()
                .with_context(|| file.display().to_string())?;
        }
        Ok(())
    })
    .await;
}

/// A first document must be taken where there are two; the last one must be refused with the
/// expected words.
fn refused(world: &World, file: &Path) -> Result<()> {
    let name = file.display();
    let text = fs_err::read_to_string(file)?;
    let expected = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("# expect: "))
        .with_context(|| format!("{name} does not start with '# expect: '"))?;
    match send(world, &text).with_context(|| name.to_string())? {
        Ok(()) => bail!("{name}: was taken, expected: {expected}"),
        Err(error) if format!("{error:#}").contains(expected) => Ok(()),
        Err(error) => bail!("{name}: expected {expected:?}, and got: {error:#}"),
    }
}

/// The API server's answer to the last document. One document is created; of two, the second
/// replaces the first.
fn send(world: &World, text: &str) -> Result<Result<()>> {
    let documents: Vec<&str> = text
        .split("\n---")
        .filter(|document| document.contains("kind:"))
        .collect();
    match documents[..] {
        // Defaults, schema and rules are those of a real request, and the operator has nothing to
        // do.
        [only] => Ok(kubectl(world, &["create", "--dry-run=server"], only)),
        [before, after] => {
            kubectl(world, &["create"], before).context("its first document")?;
            let answer = replace(world, after);
            world.kubectl(&["delete", "dengineclusters,denginebenchmarks", "--all"])?;
            Ok(answer)
        }
        _ => bail!("one or two documents are expected, not {}", documents.len()),
    }
}

/// The operator writes the status meanwhile; then the API server asks for another try.
fn replace(world: &World, document: &str) -> Result<()> {
    for _ in 0..5 {
        match kubectl(world, &["replace"], document) {
            Err(error) if format!("{error:#}").contains("(Conflict)") => {}
            answer => return answer,
        }
    }
    kubectl(world, &["replace"], document)
}

fn kubectl(world: &World, arguments: &[&str], document: &str) -> Result<()> {
    let mut kubectl = world.cluster().kubectl();
    kubectl
        .args(["--namespace", &world.namespace])
        .args(arguments)
        .arg("--filename=-");
    shell::run_with_input(&mut kubectl, document).map(drop)
}

fn files(folder: &str) -> Result<Vec<PathBuf>> {
    let folder = product::workspace()?.join("crds/tests").join(folder);
    let mut files = Vec::new();
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
