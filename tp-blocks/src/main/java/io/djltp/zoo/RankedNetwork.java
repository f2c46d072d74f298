package io.djltp.zoo;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.BlockList;
import ai.djl.nn.ParameterList;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.exchange.PretrainedWeights;
import io.djltp.internal.Errors;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.training.ParallelInference;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.List;
import java.util.stream.IntStream;

/**
 * A network that its own ranks compute, each with its shards of the weights, as a block that DJL's
 * {@code Predictor} computes with like any other. Several predictors and threads may use it at
 * once; every batch takes all ranks, one batch after another. An interrupt of such a thread does
 * not end its batch, as with one rank.
 *
 * <p>It is for prediction: to train or to continue a training, load the model with degree 1 and
 * give it to a {@link io.djltp.training.ParallelTrainer} of any number of ranks.
 */
public final class RankedNetwork extends AbstractBlock implements AutoCloseable {

    private final Block network;
    private final Model model; // of the ranks: what they use is not freed with a predictor
    private final ParallelInference ranks;
    private final long bytesRead;
    private boolean closed;

    private RankedNetwork(
            Block network, Shape[] inputs, Model model, ParallelInference ranks, long bytesRead) {
        this.network = network;
        this.model = model;
        this.ranks = ranks;
        this.bytesRead = bytesRead;
        beforeInitialize(inputs);
    }

    /**
     * Starts the ranks and lets each read its shards.
     *
     * @param network the network
     * @param weights the file of its values
     * @param inputs the shapes of its inputs
     * @param name the name of the model
     * @param device the device of rank 0; if it is a GPU, the other ranks have the next ones
     * @param size the number of ranks
     * @return the network on its ranks
     * @throws MalformedModelException if the file is of another network
     * @throws IOException if the file cannot be read
     */
    static RankedNetwork start(
            Block network,
            PretrainedWeights weights,
            Shape[] inputs,
            String name,
            Device device,
            int size)
            throws MalformedModelException, IOException {
        List<Device> devices =
                IntStream.range(device.getDeviceId(), device.getDeviceId() + size)
                        .mapToObj(i -> device.isGpu() ? Device.gpu(i) : device)
                        .toList();
        ParallelConfig config =
                ParallelConfig.builder()
                        .setMode(ParallelMode.TENSOR)
                        .setRanks(size)
                        .optDevices(devices)
                        .build();
        Model model = Model.newInstance(name + " on ranks", device, "PyTorch");
        ParallelInference ranks = null;
        try {
            model.setBlock(network);
            weights.bind(model, inputs);
            ranks = new ParallelInference(model, config);
            ranks.initialize(inputs);
            return new RankedNetwork(network, inputs, model, ranks, weights.getBytesRead());
        } catch (IOException | MalformedModelException | RuntimeException | Error e) {
            if (ranks != null) {
                ranks.drop();
            }
            model.close(); // nobody else has it
            throw e;
        }
    }

    /** {@inheritDoc} */
    @Override
    public BlockList getChildren() {
        return network.getChildren();
    }

    /** {@inheritDoc} */
    @Override
    public ParameterList getDirectParameters() {
        return network.getDirectParameters();
    }

    /** {@inheritDoc} */
    @Override
    public ParameterList getParameters() {
        return network.getParameters();
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return network.getOutputShapes(inputShapes);
    }

    /** {@inheritDoc} */
    @Override
    public void saveParameters(DataOutputStream os) throws IOException {
        network.saveParameters(os);
    }

    /** Throws UnsupportedOperationException: the weights are on the ranks. */
    @Override
    public void cast(DataType dataType) {
        throw new UnsupportedOperationException(
                ("The weights are on %d ranks, which no cast reaches: load the model with %s 1,"
                                + " cast it, and save it with ModelFolder")
                        .formatted(getRanks(), TensorParallelDegree.NAME));
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        if (training) {
            throw Errors.state(
                    "The model was loaded to predict on %d ranks, which are not those of a"
                            + " trainer: load it with %s 1 and train it by a ParallelTrainer",
                    getRanks(), TensorParallelDegree.NAME);
        }
        // copies of the ranks' own: a caller may end, and what it has with it, while they compute
        try (NDManager scope = model.getNDManager().newSubManager()) {
            NDList copies = new NDList();
            for (NDArray input : inputs) {
                NDArray copy = copy(input, scope);
                copy.setName(input.getName());
                copies.add(copy);
            }
            NDList outputs = ranks.forward(copies, scope);
            if (isEmpty(inputs.head())) {
                outputs.replaceAll(output -> output.get("0:0"));
            }
            outputs.attach(inputs.head().getManager());
            return outputs;
        }
    }

    private static boolean isEmpty(NDArray input) {
        return input.getShape().dimension() > 0 && input.getShape().get(0) == 0;
    }

    /** Copies an input, with one row if it has none: ranks need one, a plain network does not. */
    private static NDArray copy(NDArray input, NDManager scope) {
        if (isEmpty(input)) {
            long[] shape = input.getShape().getShape().clone();
            shape[0] = 1;
            return scope.zeros(new Shape(shape), input.getDataType());
        }
        NDArray copy = input.toDevice(scope.getDevice(), false).duplicate();
        copy.attach(scope);
        return copy;
    }

    /**
     * Returns the number of ranks.
     *
     * @return the number of ranks
     */
    public int getRanks() {
        return ranks.getRanks().size();
    }

    /**
     * Returns how many bytes of weights the ranks have read from the file: each those of its
     * shards; what all ranks have is read once.
     *
     * @return the bytes of all ranks
     */
    public long getBytesRead() {
        return bytesRead;
    }

    /**
     * Throws IOException, because a file of DJL's has all parameters whole. DJL calls it while it
     * loads a model, and forgets the model then, without closing it: its ranks end here.
     *
     * @param manager not used
     * @param is not used
     * @throws IOException always
     */
    @Override
    public void loadParameters(NDManager manager, DataInputStream is) throws IOException {
        close();
        throw new IOException(
                "The ranks have read their shards of "
                        + ModelFolder.WEIGHTS
                        + " already: leave out optOption(\"hasParameter\", ..) of the Criteria");
    }

    /** Ends the ranks and frees their memory. The model does it when it is closed. */
    @Override
    public synchronized void close() {
        if (!closed) {
            closed = true;
            ranks.drop();
            if (ranks.getRanks().isStopped()) {
                model.close();
            }
        }
    }
}
