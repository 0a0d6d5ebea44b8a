//! LoRA adapters that clients have loaded: names under which a model can be asked for.
//!
//! An adapter changes neither words nor timing here; it has prefixes of its own, since its keys and
//! values would be others. The invariant: a name is that of one adapter or of one model, never of
//! two.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::lora::{LoadAdapter, UnloadAdapter};

use crate::clock;

/// Adapters that are loaded at most: what clients ask for stays in memory.
const MOST: usize = 1024;

/// One adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Adapter {
    pub(crate) name: String,
    /// Where its weights would be.
    pub(crate) path: String,
    /// The model that it adapts.
    pub(crate) base: String,
    /// Seconds since 1970 at which it was loaded.
    pub(crate) loaded: u64,
}

/// All adapters, in the order in which they were loaded.
#[derive(Debug, Default)]
pub(crate) struct Adapters(RwLock<Vec<Adapter>>);

impl Adapters {
    /// Loads one for the model `base`.
    ///
    /// # Errors
    /// If there is one of that name, or there are too many.
    pub(crate) fn load(&self, request: &LoadAdapter<'_>, base: &str) -> Result<(), ApiError> {
        let adapter = Adapter {
            name: request.name.clone().into_owned(),
            path: request.path.clone().into_owned(),
            base: base.to_owned(),
            loaded: clock::unix_seconds(),
        };
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match all.iter().position(|known| known.name == adapter.name) {
            Some(place) if request.replaces => all[place] = adapter,
            Some(_) => {
                return Err(ApiError::adapter_refused(&format!(
                    "The lora adapter '{}' has already been loaded. Unload it first, or send \
                     \"load_inplace\": true.",
                    request.name
                )));
            }
            None if all.len() >= MOST => {
                return Err(ApiError::adapter_refused(&format!(
                    "{MOST} adapters are loaded, and more are not taken. Unload one first."
                )));
            }
            None => all.push(adapter),
        }
        Ok(())
    }

    /// Unloads one.
    ///
    /// # Errors
    /// If there is none of that name.
    pub(crate) fn unload(&self, request: &UnloadAdapter<'_>) -> Result<(), ApiError> {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match all.iter().position(|known| known.name == request.name) {
            Some(place) => {
                all.remove(place);
                Ok(())
            }
            None => Err(ApiError::adapter_not_found(&request.name)),
        }
    }

    /// The one of that name.
    pub(crate) fn get(&self, name: &str) -> Option<Adapter> {
        self.read().iter().find(|adapter| adapter.name == name).cloned()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Adapter> {
        self.read().clone()
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Adapter>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}
