package io.djltp.spark.ml;

import java.io.Serializable;
import java.lang.ref.Cleaner;

/**
 * A network that is broadcast: Spark keeps one on each executor, and its tasks share what is
 * loaded, which is freed when Spark lets go of it.
 */
final class SharedNetwork implements Serializable {

    private static final long serialVersionUID = 1L;

    private static final Cleaner CLEANER = Cleaner.create();

    private final SavedNetwork saved;
    private transient LoadedNetwork loaded;

    SharedNetwork(SavedNetwork saved) {
        this.saved = saved;
    }

    SavedNetwork saved() {
        return saved;
    }

    synchronized LoadedNetwork loaded() {
        if (loaded == null) {
            LoadedNetwork network = new LoadedNetwork(saved);
            CLEANER.register(this, network::close);
            loaded = network;
        }
        return loaded;
    }
}
