package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.ndarray.types.SparseFormat;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.update.EmbeddingBags;
import io.djltp.internal.update.TableShard;

import org.jspecify.annotations.Nullable;

/**
 * Sums of rows of a table, such as the n-grams of a word. In a step few of the rows of a large
 * table are used; under a {@link io.djltp.training.ParallelTrainer} the others are neither read nor
 * written, and the ranks exchange the gradients of the sums instead of that of the table.
 *
 * <ul>
 *   <li>input: int32 or int64 [batch, places], row numbers, where 0 fills up and counts for nothing
 *   <li>table: [rows, features], the same on all ranks
 *   <li>output: [batch, features]
 * </ul>
 *
 * <p>That gives the same weights as a gradient of the whole table where an optimizer leaves rows
 * with a gradient of zero alone: SGD without momentum, Adagrad and {@link
 * io.djltp.optimizer.RowwiseAdagrad}, all without weight decay. With the others, and under DJL's
 * own trainer, the table has a gradient as a whole. Collectives, where the batch is cut over the
 * ranks: all-gathers of the sizes, the row numbers and the gradients of the sums.
 *
 * <p>A row number that the table does not have throws {@link IllegalArgumentException} on every
 * rank, before anything is looked up; then training goes on. That takes the host one number of the
 * device.
 *
 * <p>As PyTorch's {@code EmbeddingBag} with {@code mode="sum"} and {@code padding_idx=0}.
 */
public final class EmbeddingBag extends AbstractBlock implements ForecastBlock {

    private static final byte VERSION = 1;

    private final Parameter table;

    /**
     * Creates a block.
     *
     * @param rows the number of rows of the table, with row 0
     * @param features the length of a row
     */
    public EmbeddingBag(long rows, long features) {
        super(VERSION);
        Errors.check(
                rows > 0 && rows <= Integer.MAX_VALUE && features > 0,
                "An embedding bag needs 1 to 2147483647 rows and 1 or more features, not %s and %s",
                rows,
                features);
        table = addParameter(VocabParallelEmbedding.newWeight(rows, features));
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        ParallelContext context = RankParameterStore.contextOf(parameterStore);
        NDArray ids = checked(inputs.singletonOrThrow(), context);
        NDArray values = parameterStore.getValue(table, ids.getDevice(), training);
        boolean trained = training && table.requiresGradient();
        if (trained && (context == null || !context.isRowSparse())) {
            return new NDList(sumOfAll(ids, values));
        }
        int[] rows = HostReads.ints(ids.toType(DataType.INT32, false));
        int width = (int) ids.getShape().get(1);
        NDArray own = DelegatedArray.unwrap(values);
        EmbeddingBags bags = new EmbeddingBags(rows, width, own.getShape().get(0));
        if (context == null || !trained) {
            NDArray sums = bags.sum(own, DelegatedArray.unwrap(ids));
            return new NDList(enterLike(context, sums, ids));
        }
        // not of the pass: the gradient is wanted when it is over
        NDArray sums = bags.sum(own, own);
        sums.setRequiresGradient(true);
        NDArray output = sums.reshape(sums.getShape());
        output.attach(
                DelegatedArray.unwrap(ids)
                        .getManager()); // what is computed from it goes with the pass
        context.getParticipants()
                .get(table, RowGradients.Table.class, () -> new RowGradients.Table(table))
                .add(rows, width, sums, output);
        return new NDList(enterLike(context, output, ids));
    }

    private static NDArray enterLike(@Nullable ParallelContext context, NDArray sums, NDArray ids) {
        return context == null ? sums : context.getPass().enterLike(sums, ids);
    }

    private NDArray checked(NDArray ids, @Nullable ParallelContext context) {
        if (ids.getShape().dimension() != 2) {
            throw Errors.argument(
                    "The row numbers of an embedding bag must be [batch, places], not %s",
                    ids.getShape());
        }
        if (!ids.getDataType().isInteger()) {
            throw Errors.argument(
                    "The row numbers of an embedding bag must be int32 or int64, not %s:"
                            + " ids.toType(DataType.INT32, false)",
                    ids.getDataType());
        }
        TableShard whole = new TableShard(Cut.ofLengths(table.getShape().get(0)), 0, -1);
        return VocabParallelEmbedding.check(
                context, whole, ids, "EmbeddingBag " + table.getShape());
    }

    /**
     * {@inheritDoc}
     *
     * <p>Of a table that is updated by rows the ranks gather the number and the places of the bags,
     * their row numbers, and the gradients of the sums.
     */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        long features = table.getShape().get(1);
        ForecastArray sums =
                new ForecastArray(
                        new Shape(input.shape().get(0), features),
                        input.region(),
                        null,
                        table.requiresGradient());
        pass.use(table, sums);
        if (pass.isRowSparse() && table.requiresGradient()) {
            pass.own(table);
            if (input.region().isRowsCut()) {
                String issuer = RowGradients.Table.ISSUER + pass.nameOf(table);
                RowGradients.forecast(pass, issuer, input.shape(), sums.shape());
            }
        }
        return sums;
    }

    /** The same in operations that autograd knows. */
    private static NDArray sumOfAll(NDArray ids, NDArray values) {
        NDArray rows =
                ids.getNDArrayInternal()
                        .embedding(ids, values, SparseFormat.DENSE)
                        .singletonOrThrow(); // [batch, places, features]
        NDArray mask = ids.neq(0).toType(values.getDataType(), false).expandDims(1);
        return mask.batchMatMul(rows).squeeze(1);
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {new Shape(inputShapes[0].get(0), table.getShape().get(1))};
    }
}
