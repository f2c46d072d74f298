package io.djltp.spark.ml;

import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.ml.Model;
import org.apache.spark.ml.param.ParamMap;
import org.apache.spark.ml.util.MLReader;
import org.apache.spark.ml.util.MLWritable;
import org.apache.spark.ml.util.MLWriter;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.types.StructType;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/**
 * A classifier that {@link ParallelClassifier} has trained. It adds two columns to a DataFrame: the
 * best class of each row, and the best {@link #topK} of them with their names and their
 * probabilities among all classes. Every executor has the whole network, on its CPU.
 */
public final class ParallelClassificationModel extends Model<ParallelClassificationModel>
        implements PredictionParams<ParallelClassificationModel>, MLWritable {

    private static final long serialVersionUID = 1L;

    private static final Logger logger = LoggerFactory.getLogger(ParallelClassificationModel.class);

    /** Unique among stages: Spark names parameters by it. */
    private final String uid;

    private final transient SavedNetwork network;
    private transient @Nullable Broadcast<SharedNetwork> broadcast;

    ParallelClassificationModel(String uid, SavedNetwork network) {
        this.uid = uid;
        this.network = network;
        Columns.setDefaults(this);
    }

    /**
     * Returns what loads a model that was saved.
     *
     * @return the reader
     */
    public static MLReader<ParallelClassificationModel> read() {
        return new SavedNetwork.Reader();
    }

    /**
     * Loads a model that was saved.
     *
     * @param path the path
     * @return the model
     */
    public static ParallelClassificationModel load(String path) {
        return read().load(path);
    }

    SavedNetwork network() {
        return network;
    }

    /**
     * Returns the number of classes.
     *
     * @return the number of classes
     */
    public int getNumClasses() {
        return network.plan().classes();
    }

    /**
     * Returns the names of the classes.
     *
     * @return the names, or none
     */
    public String[] getClassNames() {
        return network.names().clone();
    }

    /**
     * Returns the losses of the training.
     *
     * @return the mean loss of the steps of each epoch
     */
    public double[] getTrainingLosses() {
        return network.losses().clone();
    }

    /** {@inheritDoc} */
    @Override
    public String uid() {
        return uid;
    }

    /** {@inheritDoc} */
    @Override
    public ParallelClassificationModel copy(ParamMap extra) {
        ParallelClassificationModel copy = new ParallelClassificationModel(uid, network);
        copy.broadcast = broadcast;
        copyValues(copy, extra);
        return copy.setParent(parent());
    }

    /** {@inheritDoc} */
    @Override
    public StructType transformSchema(StructType schema) {
        return Columns.withPredictions(schema, this);
    }

    /** {@inheritDoc} */
    @Override
    public Dataset<Row> transform(Dataset<?> dataset) {
        StructType schema = Columns.withPredictions(dataset.schema(), this);
        Columns columns = Columns.of(dataset.schema(), getFeaturesCol(), null);
        if (network.plan().isSparse()) {
            columns = columns.sparse(getFeaturesCol());
        }
        if ((columns.kind() == Columns.Kind.INTEGERS) != network.plan().ids()) {
            throw new IllegalArgumentException(
                    "The network was trained with features that are "
                            + (network.plan().ids() ? "integers" : "real numbers")
                            + ": give it the same");
        }
        boolean predicts = !getPredictionCol().isEmpty();
        boolean lists = !getTopClassesCol().isEmpty();
        if (!predicts && !lists) {
            logger.warn("{} adds nothing: predictionCol and topClassesCol are empty", uid);
            return dataset.toDF();
        }
        int k = lists ? Math.min(getTopK(), getNumClasses()) : 1;
        RowClassifier classifier =
                new RowClassifier(broadcast(dataset), columns, k, predicts, lists);
        return dataset.toDF().mapPartitions(classifier, Encoders.row(schema));
    }

    private synchronized Broadcast<SharedNetwork> broadcast(Dataset<?> dataset) {
        if (broadcast == null) {
            broadcast =
                    new JavaSparkContext(dataset.sparkSession().sparkContext())
                            .broadcast(new SharedNetwork(network));
        }
        return broadcast;
    }

    /** {@inheritDoc} */
    @Override
    public MLWriter write() {
        return new SavedNetwork.Writer(this);
    }

    /**
     * Writes the network as DJL loads it without Spark: the parameters {@code
     * classifier-0000.params}, those of the body, the hidden layers and the head as {@code Linear}
     * blocks, and, where classes have names, {@code synset.txt}. How the network was built is in
     * {@code network.json}, the losses of its epochs in {@code losses.json}.
     *
     * @param folder a folder of this machine, which is made if there is none
     * @throws IOException if it cannot be written
     */
    public void saveAsDjl(Path folder) throws IOException {
        Files.createDirectories(folder);
        for (Map.Entry<String, byte[]> file : network.files().entrySet()) {
            Files.write(folder.resolve(file.getKey()), file.getValue());
        }
    }
}
