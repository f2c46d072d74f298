package io.djltp.spark.ml;

import java.io.Serializable;
import java.lang.ref.Cleaner;

/**
 * A network that is broadcast: Spark keeps one on each executor, and its tasks share what is
 * loaded, which is freed when Spark lets go of it. Its fields are such as Kryo takes too.
 */
final class SharedNetwork implements Serializable {

    private static final long serialVersionUID = 1L;

    private static final Cleaner CLEANER = Cleaner.create();

    private final String plan; // JSON
    private final byte[] parameters;
    private final String[] names;
    private transient LoadedNetwork loaded;

    SharedNetwork(SavedNetwork saved) {
        plan = saved.plan().toJson();
        parameters = saved.parameters();
        names = saved.names();
    }

    /** Returns the name of a class, which is its number where classes have no names. */
    String nameOf(long label) {
        return names.length == 0 ? Long.toString(label) : names[(int) label];
    }

    synchronized LoadedNetwork loaded() {
        if (loaded == null) {
            LoadedNetwork network = new LoadedNetwork(NetworkPlan.ofJson(plan), parameters);
            CLEANER.register(this, network::close);
            loaded = network;
        }
        return loaded;
    }
}
