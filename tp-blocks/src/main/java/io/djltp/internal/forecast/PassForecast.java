package io.djltp.internal.forecast;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.ParallelBlock;
import ai.djl.nn.Parameter;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.cut.Cut;
import io.djltp.internal.layout.Region;
import io.djltp.internal.layout.TokenCut;
import io.djltp.rank.DeviceMesh;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;

/**
 * A training step of one rank that has not happened: what it will communicate, and how it will use
 * the parameters. Filled by {@link ForecastBlock} and {@link ForecastLoss}.
 */
public final class PassForecast {

    private static final String IN_ORDER = "calls its children once each, in order";

    private final DeviceMesh mesh;
    private final int rank;
    private final Cut batch;
    private final Model model;
    private final TrafficTable table = new TrafficTable();
    private final Map<Parameter, Region> uses = new IdentityHashMap<>();
    private final Set<Parameter> own = Collections.newSetFromMap(new IdentityHashMap<>());
    private int repetitions; // of the present part, in the backward pass

    /**
     * Begins a step.
     *
     * @param mesh the ranks
     * @param rank the rank whose step it is
     * @param batch the number of rows of the batch over all ranks
     * @param model what is known of the model
     */
    public PassForecast(DeviceMesh mesh, int rank, long batch, Model model) {
        this.mesh = mesh;
        this.rank = rank;
        this.batch = Cut.balanced(batch, size(mesh, DeviceMesh.DATA));
        this.model = model;
    }

    private static int size(DeviceMesh mesh, String axis) {
        return mesh.isCut(axis) ? mesh.getSize(axis) : 1;
    }

    /**
     * Goes through a block, such as a child of one that is composed of others.
     *
     * @param block the block
     * @param inputs its inputs, at least the first; their shapes are taken from the block where
     *     that knows them, which was initialized for one row
     * @return its first output
     */
    public ForecastArray visit(Block block, ForecastArray... inputs) {
        List<Shape> known = knownShapes(block);
        List<ForecastArray> arrays = new ArrayList<>();
        for (int i = 0; i < inputs.length; i++) {
            boolean isKnown = i < known.size() && known.get(i).size() > 0;
            arrays.add(isKnown ? inputs[i].withShape(ofBatch(known.get(i))) : inputs[i]);
        }
        if (block instanceof ForecastBlock forecast) {
            return forecast.forecast(this, arrays);
        }
        try {
            return walk(block, arrays);
        } catch (IllegalArgumentException e) {
            boolean own = !block.getClass().getName().startsWith("ai.djl.");
            if (own && !String.valueOf(e.getMessage()).contains(IN_ORDER)) {
                throw new IllegalArgumentException(
                        ("%s. The forecast assumes that %s %s: if it does not, train one"
                                        + " step and read trainer.getCollectiveCounts()")
                                .formatted(e.getMessage(), nameOf(block), IN_ORDER),
                        e);
            }
            throw e;
        }
    }

    private String nameOf(Block block) {
        String name = model.blockNames().getOrDefault(block, "");
        String type = block.getClass().getSimpleName();
        return name.isEmpty() ? type : name + " (" + type + ")";
    }

    /**
     * Goes through a block that says nothing of ranks: the children of a {@link ParallelBlock} have
     * the same input; those of any other block, such as one of the user's, are taken to follow one
     * another in the order in which it has added them, each used once.
     */
    private ForecastArray walk(Block block, List<ForecastArray> inputs) {
        use(block, inputs.get(0));
        boolean parallel = block instanceof ParallelBlock;
        boolean trained =
                block.getDirectParameters().values().stream().anyMatch(Parameter::requiresGradient);
        ForecastArray[] all = inputs.toArray(new ForecastArray[0]);
        ForecastArray output = all[0].with(trained);
        all[0] = parallel ? all[0] : output;
        for (Block child : block.getChildren().values()) {
            output = visit(child, all);
            trained |= output.differentiated();
            output = output.with(trained);
            all = parallel ? all : new ForecastArray[] {output};
        }
        return output;
    }

    /**
     * Goes through a part that is computed again in the backward pass, with what it communicates
     * forward.
     *
     * @param part goes through the part
     * @return its output
     */
    public ForecastArray repeated(Supplier<ForecastArray> part) {
        repetitions++;
        try {
            return part.get();
        } finally {
            repetitions--;
        }
    }

    /**
     * Returns the shape of the whole batch, of one that is known of a batch of one row: some blocks
     * find shapes by computing with zeros, which are not to be many.
     *
     * @param ofRow the shape
     * @return the shape with axis 0 as many times as long, if it has a length: some blocks of DJL
     *     are initialized for -1 rows
     */
    public Shape ofBatch(Shape ofRow) {
        long[] shape = ofRow.getShape().clone();
        if (shape.length > 0 && shape[0] > 0) {
            shape[0] *= batch.getLength();
        }
        return new Shape(shape);
    }

    private static List<Shape> knownShapes(Block block) {
        Shape[] shapes = block.isInitialized() ? block.getInputShapes() : null;
        return shapes == null ? List.of() : List.of(shapes);
    }

    /**
     * Returns the mappings of a block.
     *
     * @param user the block
     * @return what notes operations for it
     */
    public ForecastMappings getMappings(Block user) {
        String type = user.getClass().getSimpleName();
        return new ForecastMappings(this, model.blockNames().getOrDefault(user, type), type);
    }

    /**
     * Notes an operation.
     *
     * @param issuer who will issue it, as a {@link io.djltp.internal.rank.CommunicationCounter}
     *     names it
     * @param direction when
     * @param collective the operation
     * @param size the number of ranks of the group; of one rank is nothing noted
     * @param bytes the size of the whole array that it is about
     */
    public void add(
            String issuer, Direction direction, Collective collective, int size, long bytes) {
        if (model.training() || direction == Direction.FORWARD) {
            table.add(issuer, direction, collective, size, bytes);
        }
        boolean again = model.training() && direction == Direction.FORWARD;
        for (int i = 0; again && i < repetitions; i++) {
            table.add(issuer, Direction.BACKWARD, collective, size, bytes);
        }
    }

    /**
     * Notes that the rows of the data group's ranks are put together, as {@link
     * io.djltp.internal.rank.DataRows} does: an all-gather, and the own rows of the gradient.
     *
     * @param input the rank's rows
     * @return all rows
     */
    public ForecastArray gatherRows(ForecastArray input) {
        if (!input.region().isRowsCut()) {
            return input;
        }
        ForecastArray whole = input.with(Region.Rows.WHOLE);
        add(
                "the rows of the batch",
                Direction.FORWARD,
                Collective.ALL_GATHER,
                getDataSize(),
                bytes(local(whole)));
        return whole;
    }

    /**
     * Notes where parameters are used: over which ranks their gradients are summed follows.
     *
     * @param block the block whose own parameters they are
     * @param array what they are computed with on the rank
     */
    public void use(Block block, ForecastArray array) {
        block.getDirectParameters().values().forEach(parameter -> use(parameter, array));
    }

    /**
     * Notes where a parameter is used.
     *
     * @param parameter the parameter, or {@code null} for none
     * @param array what it is computed with on the rank
     */
    public void use(@Nullable Parameter parameter, ForecastArray array) {
        if (parameter != null) {
            uses.put(parameter, array.region());
        }
    }

    /**
     * Returns whether a parameter was used where each rank has its rows of the batch.
     *
     * @param parameter the parameter
     * @return whether it was used with the rows of a rank
     */
    public boolean isUsedWithCutRows(Parameter parameter) {
        return uses.getOrDefault(parameter, Region.WHOLE).isRowsCut();
    }

    /**
     * Notes that a block updates a parameter itself, as a {@link
     * io.djltp.internal.rank.StepParticipant}, and keeps no gradient of it.
     *
     * @param parameter the parameter
     */
    public void own(Parameter parameter) {
        own.add(parameter);
    }

    /**
     * Returns the shape of what the rank has of an array.
     *
     * @param array the array
     * @return the shape with the rank's rows, tokens and features
     * @throws IllegalArgumentException if there are fewer tokens than ranks that share them
     */
    public Shape local(ForecastArray array) {
        long[] shape = array.shape().getShape().clone();
        if (array.region().isRowsCut() && shape.length > 0) {
            int place = getDataSize() == 1 ? 0 : mesh.getCoordinate(rank, DeviceMesh.DATA);
            shape[0] = shape[0] / batch.getLength() * batch.getShardLength(place);
        }
        if (array.region().isTokensCut()) {
            TokenCut tokens = TokenCut.of(new Shape(shape), getTensorSize());
            shape[tokens.axis()] = tokens.cut().getShardLength(getTensorRank());
        }
        if (array.cut() != null) {
            shape[shape.length - 1] = array.cut().getShardLength(getTensorRank());
        }
        return new Shape(shape);
    }

    /**
     * Returns the size of an array in the type of the parameters.
     *
     * @param shape its shape
     * @return the bytes
     */
    public long bytes(Shape shape) {
        return shape.size() * model.dataType().getNumOfBytes();
    }

    /**
     * Returns the number of ranks over which layers are cut.
     *
     * @return the size of the tensor-parallel group
     */
    public int getTensorSize() {
        return size(mesh, DeviceMesh.TENSOR);
    }

    /**
     * Returns the rank's place among those over which layers are cut.
     *
     * @return the rank in the tensor-parallel group
     */
    public int getTensorRank() {
        return getTensorSize() == 1 ? 0 : mesh.getCoordinate(rank, DeviceMesh.TENSOR);
    }

    /**
     * Returns the number of ranks over which the batch is cut.
     *
     * @return the size of the data-parallel group
     */
    public int getDataSize() {
        return size(mesh, DeviceMesh.DATA);
    }

    /**
     * Returns how the ranks are arranged.
     *
     * @return the mesh
     */
    public DeviceMesh getMesh() {
        return mesh;
    }

    /**
     * Returns whether there is a backward pass and a step.
     *
     * @return whether the model is trained
     */
    public boolean isTraining() {
        return model.training();
    }

    /**
     * Returns the type of ids.
     *
     * @return the type, such as int64
     */
    public DataType getIdType() {
        return model.idType();
    }

    /**
     * Returns whether the optimizer leaves rows of a table alone whose gradient is zero.
     *
     * @return whether tables are updated by the rows that were used
     */
    public boolean isRowSparse() {
        return model.rowSparse();
    }

    /**
     * Returns the name of a parameter in the network.
     *
     * @param parameter the parameter
     * @return the name
     */
    public String nameOf(Parameter parameter) {
        return model.parameterNames().getOrDefault(parameter, parameter.getName());
    }

    /**
     * Returns what was noted.
     *
     * @return the traffic of the rank
     */
    public TrafficTable getTable() {
        return table;
    }

    /**
     * Returns where parameters are used.
     *
     * @return the region that each is computed in
     */
    public Map<Parameter, Region> getUses() {
        return new HashMap<>(uses);
    }

    /**
     * Returns whether a block updates a parameter itself.
     *
     * @param parameter the parameter
     * @return whether it has no gradient of its own
     */
    public boolean isOwn(Parameter parameter) {
        return own.contains(parameter);
    }

    /**
     * What is known of a model whose step is forecast.
     *
     * @param dataType the type of parameters and activations
     * @param idType the type of ids, which ranks gather where a vocabulary is cut over those that
     *     the rows are
     * @param training whether it is trained, or there is a forward pass only
     * @param rowSparse whether the optimizer leaves rows of a table alone whose gradient is zero
     * @param blockNames what blocks are called
     * @param parameterNames what parameters are called
     */
    public record Model(
            DataType dataType,
            DataType idType,
            boolean training,
            boolean rowSparse,
            Map<Block, String> blockNames,
            Map<Parameter, String> parameterNames) {}
}
