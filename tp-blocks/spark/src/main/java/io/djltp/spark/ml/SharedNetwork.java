package io.djltp.spark.ml;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.Utils;

import io.djltp.head.TopClasses;
import io.djltp.search.ClassSearch;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.Serializable;
import java.lang.ref.Cleaner;
import java.nio.file.Files;
import java.nio.file.Path;

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
    private transient @Nullable LoadedNetwork loaded;

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

    /** A network in the memory of an executor, on its CPU. Safe to be shared by tasks. */
    static final class LoadedNetwork implements AutoCloseable {

        private final NetworkPlan plan;
        private final Model model;
        private final SequentialBlock body;
        private final ClassSearch search;

        /**
         * Loads a network.
         *
         * @param plan how it is built
         * @param parameters its parameters in DJL's format
         */
        LoadedNetwork(NetworkPlan plan, byte[] parameters) {
            this.plan = plan;
            SequentialBlock network = plan.newNetwork();
            model = Model.newInstance(SavedNetwork.NAME, Device.cpu(), "PyTorch");
            try {
                model.setBlock(network);
                load(parameters);
                int last = network.getChildren().size() - 1;
                body = new SequentialBlock();
                for (Block each : network.getChildren().values().subList(0, last)) {
                    body.add(each);
                }
                search = ClassSearch.of(network.getChildren().get(last).getValue());
            } catch (IOException | MalformedModelException e) {
                model.close();
                throw new IllegalStateException("The trained network cannot be loaded: " + e, e);
            } catch (RuntimeException e) {
                model.close();
                throw e;
            }
        }

        private void load(byte[] parameters) throws IOException, MalformedModelException {
            Path folder = Files.createTempDirectory("tp-spark");
            try {
                Files.write(folder.resolve(SavedNetwork.PARAMETERS), parameters);
                model.load(folder, SavedNetwork.NAME);
            } finally {
                Utils.deleteQuietly(folder);
            }
        }

        NetworkPlan plan() {
            return plan;
        }

        /**
         * Finds the best classes.
         *
         * @param manager the manager of the result
         * @param inputs the features of some rows
         * @param k how many classes
         */
        TopClasses classify(NDManager manager, NDList inputs, int k) {
            NDList features = inputs;
            if (body.getChildren().size() > 0) {
                features = body.forward(new ParameterStore(manager, false), features, false);
            }
            NDArray rows = features.singletonOrThrow();
            return plan.oneVsAll() ? search.topK(rows, k) : search.classify(rows, k);
        }

        /** {@inheritDoc} */
        @Override
        public void close() {
            search.close();
            model.close();
        }
    }
}
