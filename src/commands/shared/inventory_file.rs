//! The inventory of a command, and whether others could have written it.

use crate::cli::Global;
use crate::error::Error;
use crate::event::{Events, Message};
use crate::inventory::Inventory;
use crate::paths;
use crate::sync::target::is_fetched;
use crate::text::digest::in_hex;
use crate::text::quote::readable;
use crate::trust::{ForeignWriter, foreign_writers};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The next step where a file has no modes of its own.
const WITHOUT_MODES: &str = "where that changes nothing (a Windows drive in WSL), copy it to your home directory";

/// The file of an inventory.
#[derive(Debug, PartialEq, Eq)]
pub struct InventoryFile {
    path: PathBuf,
    /// True if `-i` or `$HVDCTL_INVENTORY` names it. If not, it was found by chance, and another user may have put it
    /// there.
    is_named: bool,
}

impl InventoryFile {
    /// Returns `-i` or `$HVDCTL_INVENTORY`, else the first of the usual files that exists.
    pub fn find(global: &Global) -> Option<InventoryFile> {
        if let Some(path) = &global.inventory {
            return Some(InventoryFile { path: path.clone(), is_named: true });
        }
        let config = || {
            let xdg = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
            Some(xdg.or_else(|| Some(std::env::home_dir()?.join(".config")))?.join("hvdctl/inventory.toml"))
        };
        let usual = [Some("inventory.toml".into()), config()].into_iter().flatten();
        // a link that leads nowhere may lead somewhere in a moment
        let found = usual.into_iter().find(|path: &PathBuf| path.symlink_metadata().is_ok())?;
        Some(InventoryFile { path: found, is_named: false })
    }

    /// Reads the inventory, if nobody else can have changed it or one of the files that it names.
    ///
    /// # Errors
    /// A file that is wrong, or that others can change: any others if it was found by chance, every user if it is
    /// named.
    pub fn load(&self, events: &Events) -> Result<Inventory, Error> {
        // without the directory, it may be taken for any inventory
        let here = if self.is_named || self.path.is_absolute() { "" } else { "./" };
        let shown = format!("{here}{}", self.path.display());
        if !self.is_named && fs::metadata(&self.path).is_ok_and(|meta| !meta.is_file()) {
            return Err(Error::usage(
                format!("{shown} is not a regular file"),
                "remove it, or name an inventory: -i FILE",
            ));
        }
        self.check(&shown, &self.path, events)?;
        if !self.is_named && is_fetched(&self.path) {
            let message = format!("{shown} is not used: it was fetched from a node of a job");
            return Err(Error::usage(
                message,
                format!("read it, then name it: -i {}", readable(&self.path.display().to_string())),
            ));
        }
        let inventory = Inventory::load(&self.path)?;
        for (path, field) in inventory.files() {
            self.check(&format!("{shown}: {field}"), path, events)?;
        }
        Ok(inventory)
    }

    /// Checks who can change the inventory, or a file that it names.
    fn check(&self, shown: &str, path: &Path, events: &Events) -> Result<(), Error> {
        // a pipe of the shell, or a file without a name: nobody else can open it
        if self.is_named && fs::metadata(path).is_ok_and(|meta| !meta.is_file() || meta.nlink() == 0) {
            return Ok(());
        }
        let writers = match foreign_writers(path) {
            // what needs it says that it is missing
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
            Err(error) => {
                return Err(Error::usage(format!("{shown}: cannot find out who can change it: {error}"), WHY));
            }
            Ok(writers) => writers,
        };
        let everybody = writers.iter().find(|writer| writer.is_everybody());
        match (everybody, writers.first()) {
            (_, None) => Ok(()),
            (Some(writer), _) if self.is_named => Err(refusal(shown, writer, "")),
            (_, Some(writer)) if !self.is_named => {
                let named = format!(
                    "; if you trust them, name the inventory: -i {}",
                    readable(&self.path.display().to_string())
                );
                Err(refusal(shown, writer, if everybody.is_none() { &named } else { "" }))
            }
            (_, Some(writer)) => {
                warn_once(&format!("{shown}: {}", writer.describe()), &writer.command(), events);
                Ok(())
            }
        }
    }
}

/// The reason why it matters who can change a file.
const WHY: &str =
    "anyone who can change it chooses the machines that get your project and your secrets, and what ssh runs here";

fn refusal(shown: &str, writer: &ForeignWriter, instead: &str) -> Error {
    let without_modes = if writer.is_everybody() { format!("; {WITHOUT_MODES}") } else { String::new() };
    let message = format!("{shown} is not used: {}. {}{}", writer.describe(), WHY[..1].to_uppercase(), &WHY[1..]);
    Error::usage(message, format!("{}{without_modes}{instead}", writer.command()))
}

/// Warns of who else can change a file, unless this user was warned of the same before.
fn warn_once(text: &str, command: &str, events: &Events) {
    if let Some(directory) = paths::state_directory().map(|state| state.join("warned")) {
        let mark = directory.join(&in_hex(text.as_bytes())[..32]);
        if mark.symlink_metadata().is_ok() {
            return;
        }
        // without it the next command warns again
        let _ = fs::create_dir_all(&directory).and_then(|()| fs::write(mark, ""));
    }
    events.warn(Message::from(format!("{text}: {WHY}")).hint(format!("{command}, unless they are meant to change it")));
}
