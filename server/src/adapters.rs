//! LoRA adapters that clients have loaded: names under which a model can be asked for.
//!
//! An adapter changes neither words nor timing here; it has prefixes of its own, since its keys and
//! values would be others. The invariant: a name is that of one adapter or of one model, never of
//! two.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::lora::{LoadAdapter, UnloadAdapter};

use crate::clock;

/// Adapters that are loaded at most: what clients ask for stays in memory.
pub(crate) const MOST: usize = 1024;

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

/// A request that an adapter is answering, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Lease(Arc<AtomicU32>);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An adapter and how many requests it is answering.
#[derive(Debug)]
struct Loaded {
    adapter: Adapter,
    requests: Arc<AtomicU32>,
}

/// All adapters, in the order in which they were loaded.
#[derive(Debug, Default)]
pub(crate) struct Adapters(RwLock<Vec<Loaded>>);

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
        match all.iter().position(|known| known.adapter.name == adapter.name) {
            Some(place) if request.replaces => all[place].adapter = adapter,
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
            None => all.push(Loaded { adapter, requests: Arc::default() }),
        }
        Ok(())
    }

    /// Unloads one.
    ///
    /// # Errors
    /// If there is none of that name.
    pub(crate) fn unload(&self, request: &UnloadAdapter<'_>) -> Result<(), ApiError> {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match all.iter().position(|known| known.adapter.name == request.name) {
            Some(place) => {
                all.remove(place);
                Ok(())
            }
            None => Err(ApiError::adapter_not_found(&request.name)),
        }
    }

    /// The one of that name.
    pub(crate) fn get(&self, name: &str) -> Option<Adapter> {
        let all = self.read();
        let loaded = all.iter().find(|loaded| loaded.adapter.name == name);
        loaded.map(|loaded| loaded.adapter.clone())
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Adapter> {
        self.read().iter().map(|loaded| loaded.adapter.clone()).collect()
    }

    /// Counts a request for the adapter of that name, if there is one.
    pub(crate) fn lease(&self, name: &str) -> Option<Lease> {
        let all = self.read();
        let loaded = all.iter().find(|loaded| loaded.adapter.name == name)?;
        loaded.requests.fetch_add(1, Ordering::Relaxed);
        Some(Lease(Arc::clone(&loaded.requests)))
    }

    /// The names of those that are answering requests.
    pub(crate) fn running(&self) -> Vec<String> {
        let all = self.read();
        let busy = all.iter().filter(|loaded| loaded.requests.load(Ordering::Relaxed) > 0);
        busy.map(|loaded| loaded.adapter.name.clone()).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Loaded>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}
