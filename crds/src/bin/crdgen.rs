//! Writes the CustomResourceDefinitions into a directory: `crdgen crds/yaml`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use dengine_crds::definitions;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args_os()
        .nth(1)
        .map(PathBuf::from)
        .ok_or("usage: crdgen FOLDER")?;
    fs::create_dir_all(&folder)?;
    for (file, definition) in definitions::all() {
        fs::write(folder.join(file), definitions::to_yaml(&definition)?)?;
    }
    Ok(())
}
