package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
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
import io.djltp.internal.update.EmbeddingBags;
import io.djltp.internal.update.TableShard;

import java.util.List;

/**
 * Sums of rows of a table, such as the n-grams of a word or the terms of a document. In a step few
 * of the rows of a large table are used; under a {@link io.djltp.training.ParallelTrainer} the
 * others are neither read nor written, and the ranks exchange the gradients of the sums instead of
 * that of the table.
 *
 * <ul>
 *   <li>input: int32 or int64 [batch, places], row numbers, where 0 fills up and counts for nothing
 *   <li>or two inputs: these, and float32 [batch, places], by which the rows are multiplied, such
 *       as tf-idf, or 1/n for the mean of n rows; they have no gradient
 *   <li>table: [rows, features], the same on all ranks
 *   <li>output: [batch, features]
 * </ul>
 *
 * <p>That gives the same weights as a gradient of the whole table where an optimizer leaves rows
 * with a gradient of zero alone: SGD without momentum, Adagrad and {@link
 * io.djltp.optimizer.RowwiseAdagrad}, all without weight decay. With the others, and under DJL's
 * own trainer, the table has a gradient as a whole. Collectives, where the batch is cut over the
 * ranks: all-gathers of the sizes, the row numbers with their weights, and the gradients of the
 * sums.
 *
 * <p>A batch may have short bags beside long ones, in place of PyTorch's {@code offsets}: a place
 * that is filled up takes 4 bytes of the input, and 8 with weights, such as 20 MB for 512 bags of
 * which one has 5,000 rows. No row of the table is read for it, and ranks do not exchange it.
 *
 * <p>A row number that the table does not have throws {@link IllegalArgumentException} on every
 * rank, before anything is looked up; then training goes on. That takes the host one number of the
 * device.
 *
 * <p>As PyTorch's {@code EmbeddingBag} with {@code mode="sum"}, {@code padding_idx=0} and, with
 * weights, {@code per_sample_weights}.
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
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        ParallelContext context = RankParameterStore.contextOf(store);
        NDArray ids = checked(inputs);
        NDArray weights = inputs.size() == 1 ? null : DelegatedArray.unwrap(inputs.get(1));
        NDArray values = store.getValue(table, ids.getDevice(), training);
        NDArray own = DelegatedArray.unwrap(values);
        NDArray rows = DelegatedArray.unwrap(ids);
        long width = ids.getShape().get(1);
        int[] places = width == 0 ? new int[0] : EmbeddingBags.places(rows, weights);
        if (!EmbeddingBags.areIn(places, weights != null, table.getShape().get(0))) {
            TableShard whole = new TableShard(Cut.ofLengths(table.getShape().get(0)), 0, -1);
            String what = "EmbeddingBag " + table.getShape();
            ids = VocabParallelEmbedding.check(context, whole, ids, what); // zeros, or throws
            rows = DelegatedArray.unwrap(ids);
            places = EmbeddingBags.places(rows, weights);
        }
        EmbeddingBags bags =
                width == 0
                        ? EmbeddingBags.padded(new int[(int) ids.getShape().get(0)], 1, false)
                        : EmbeddingBags.padded(
                                places, (int) width * inputs.size(), weights != null);
        boolean trained = training && table.requiresGradient();
        if (context == null) {
            return new NDList(bags.sum(own, rows, trained));
        }
        if (!trained || !context.isRowSparse()) {
            NDArray sums = bags.sum(own, rows, trained);
            return new NDList(context.getPass().enterLike(sums, ids, trained ? table : null));
        }
        // not of the pass: the gradient is wanted when it is over
        NDArray sums = bags.sum(own, own, false);
        sums.setRequiresGradient(true);
        NDArray output = sums.reshape(sums.getShape());
        output.attach(rows.getManager()); // what is computed from it goes with the pass
        context.getParticipants()
                .get(table, RowGradients.Table.class, () -> new RowGradients.Table(table))
                .add(bags, sums, output);
        return new NDList(context.getPass().enterLike(output, ids));
    }

    private static NDArray checked(NDList inputs) {
        NDArray ids = inputs.head();
        Shape shape = ids.getShape();
        Errors.check(
                shape.dimension() == 2 && inputs.size() <= 2,
                "The input of an embedding bag must be row numbers [batch, places], and maybe as"
                        + " many weights, not %s array(s), the first %s",
                inputs.size(),
                shape);
        if (inputs.size() == 2) {
            NDArray weights = inputs.get(1);
            Errors.check(
                    weights.getShape().equals(shape) && weights.getDataType() == DataType.FLOAT32,
                    "The weights of an embedding bag must be float32 %s, as its row numbers are,"
                            + " not %s %s",
                    shape,
                    weights.getDataType(),
                    weights.getShape());
        }
        Errors.check(
                ids.getDataType().isInteger(),
                "The row numbers of an embedding bag must be int32 or int64, not %s:"
                        + " ids.toType(DataType.INT32, false)",
                ids.getDataType());
        return ids;
    }

    /**
     * {@inheritDoc}
     *
     * <p>Of a table that is updated by rows the ranks gather the number and the places of the bags,
     * their row numbers and weights, and the gradients of the sums.
     */
    @Override
    public ForecastArray forecast(PassForecast pass, List<ForecastArray> inputs) {
        ForecastArray input = inputs.get(0);
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
                RowGradients.forecast(pass, issuer, input.shape(), inputs.size() > 1, sums.shape());
            }
        }
        return sums;
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        return forecast(pass, List.of(input));
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {new Shape(inputShapes[0].get(0), table.getShape().get(1))};
    }
}
