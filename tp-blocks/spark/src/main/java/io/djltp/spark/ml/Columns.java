package io.djltp.spark.ml;

import io.djltp.spark.InterruptibleJob;

import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.ml.linalg.SparseVector;
import org.apache.spark.ml.linalg.Vector;
import org.apache.spark.ml.linalg.VectorUDT;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StructType;
import org.jspecify.annotations.Nullable;

import scala.Function2;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * Where a row's features and its labels are. A record of a row has, in big-endian order, the number
 * of its values, 32 bits each: of sparse features, the places of those that are not zero, from 1,
 * and then them, else all features; and the labels, 64 bits each, ascending, each once.
 *
 * @param features the place of the features
 * @param label the place of the label, or -1
 * @param kind the type of the features
 * @param many whether a row has an array of labels
 * @param numbers the classes by the names that labels are, or {@code null} if they are numbers
 */
record Columns(
        int features, int label, Kind kind, boolean many, @Nullable Map<String, Integer> numbers)
        implements Serializable {

    private static final Set<DataType> MANY =
            Set.of(DataTypes.IntegerType, DataTypes.LongType, DataTypes.StringType);

    /** The types that features may have. */
    enum Kind {
        VECTOR,
        SPARSE,
        REALS,
        INTEGERS
    }

    /**
     * Finds the columns.
     *
     * @param schema the columns that there are
     * @param features the name of the features
     * @param label the name of the label, or {@code null} if none is needed
     */
    static Columns of(StructType schema, String features, @Nullable String label) {
        int at = find(schema, features, "setFeaturesCol");
        int labelAt = label == null ? -1 : find(schema, label, "setLabelCol");
        DataType labels = labelAt < 0 ? DataTypes.LongType : schema.apply(labelAt).dataType();
        boolean many = labels instanceof ArrayType array && MANY.contains(array.elementType());
        if (!many && !(labels instanceof NumericType)) {
            throw new IllegalArgumentException(
                    ("The column '%s' is of type %s: labels are the numbers of classes, from 0"
                                    + " (a StringIndexer makes them of names), or, for rows with"
                                    + " several, an array of int, bigint or string")
                            .formatted(label, labels.simpleString()));
        }
        Kind kind = kindOf(features, schema.apply(at).dataType());
        return new Columns(at, labelAt, kind, many, null);
    }

    /** Returns the columns with vectors of which only what is not zero is kept. */
    Columns sparse(String name) {
        if (kind != Kind.VECTOR) {
            throw new IllegalArgumentException(
                    ("The column '%s' is an array, and sparse features are a vector: give it one,"
                                    + " or leave embeddingUnits out")
                            .formatted(name));
        }
        return new Columns(features, label, Kind.SPARSE, many, numbers);
    }

    /** Returns the columns with the names of classes as labels. */
    Columns named(Map<String, Integer> names) {
        return new Columns(features, label, kind, many, names);
    }

    private static int find(StructType schema, String name, String setter) {
        int[] places = places(schema, name);
        if (places.length == 1) {
            return places[0];
        }
        String all = Arrays.toString(schema.fieldNames());
        throw new IllegalArgumentException(
                places.length == 0
                        ? "The DataFrame has no column '%s': its columns are %s; choose one with %s"
                                .formatted(name, all, setter)
                        : ("The DataFrame has %d columns '%s': its columns are %s; rename them, or"
                                        + " set spark.sql.caseSensitive to true")
                                .formatted(places.length, name, all));
    }

    /** Returns where columns of a name are: of upper or lower case, as Spark is told to see it. */
    static int[] places(StructType schema, String name) {
        String[] all = schema.fieldNames();
        return IntStream.range(0, all.length).filter(i -> isSame(all[i], name)).toArray();
    }

    /** Returns whether two names are of one column, see {@link #places}. */
    static boolean isSame(String name, String other) {
        Function2<String, String, Object> same = SQLConf.get().resolver();
        return (Boolean) same.apply(name, other);
    }

    private static Kind kindOf(String name, DataType type) {
        if (type instanceof VectorUDT) {
            return Kind.VECTOR;
        }
        DataType element = type instanceof ArrayType array ? array.elementType() : null;
        if (DataTypes.FloatType.equals(element) || DataTypes.DoubleType.equals(element)) {
            return Kind.REALS;
        }
        if (DataTypes.IntegerType.equals(element)) {
            return Kind.INTEGERS;
        }
        throw new IllegalArgumentException(
                ("The column '%s' is of type %s: features are a vector, an array of float or"
                                + " double, or, for a body that looks them up, an array of int")
                        .formatted(name, type.simpleString()));
    }

    /** Returns the length of a row's features, or -1 if they are missing. */
    int width(Row row) {
        if (row.isNullAt(features)) {
            return -1;
        }
        return kind == Kind.VECTOR || kind == Kind.SPARSE
                ? row.<Vector>getAs(features).size()
                : row.getList(features).size();
    }

    /** Returns an empty record that has room for a row, whose features are not missing. */
    ByteBuffer newRecord(Row row) {
        int values =
                kind == Kind.SPARSE ? 2 * row.<Vector>getAs(features).numNonzeros() : width(row);
        int labels = 0;
        if (label >= 0 && !row.isNullAt(label)) {
            labels = many ? row.getList(label).size() : 1;
        }
        long bytes = Integer.BYTES * (1L + values) + Long.BYTES * (long) labels;
        return ByteBuffer.allocate(Math.toIntExact(bytes));
    }

    /**
     * Reads the features, 32 bits each: float32, or int32.
     *
     * @return what is wrong with them, or {@code null}
     */
    @Nullable String read(Row row, ByteBuffer bits) {
        double[] vector = null;
        int[] places = null;
        if (kind == Kind.SPARSE) {
            SparseVector sparse = row.<Vector>getAs(features).toSparse();
            vector = sparse.values();
            places = sparse.indices();
        } else if (kind == Kind.VECTOR) {
            vector = row.<Vector>getAs(features).toArray();
        }
        List<Number> list = vector == null ? row.getList(features) : List.of();
        int width = vector == null ? list.size() : vector.length;
        bits.putInt(width);
        for (int i = 0; places != null && i < width; i++) {
            bits.putInt(places[i] + 1); // 0 fills up
        }
        for (int i = 0; i < width; i++) {
            Number value = vector == null ? list.get(i) : (Number) vector[i];
            int place = places == null ? i : places[i];
            if (value == null) {
                return "feature " + place + " is null";
            }
            if (kind == Kind.INTEGERS) {
                bits.putInt(value.intValue());
                continue;
            }
            if (!Float.isFinite(value.floatValue())) {
                boolean large = Double.isFinite(value.doubleValue());
                String why = large ? ", beyond float32 (" + Float.MAX_VALUE + ")" : "";
                return "feature " + place + " is " + value + why;
            }
            bits.putFloat(value.floatValue());
        }
        return null;
    }

    /**
     * Reads the labels.
     *
     * @param classes the number of classes, or 0 if nothing is known of it
     * @return what is wrong with them, or {@code null}
     */
    @Nullable String readLabels(Row row, int classes, ByteBuffer bits) {
        if (row.isNullAt(label)) {
            return many
                    ? "has null as labels: a row without labels has an empty array (setLabelCol)"
                    : "has no label";
        }
        List<?> all = many ? row.getList(label) : List.of(row.get(label));
        long[] found = new long[all.size()];
        for (int i = 0; i < found.length; i++) {
            Object each = all.get(i);
            Object number = numbers == null || each == null ? each : numbers.get(each);
            double value = number == null ? Double.NaN : ((Number) number).doubleValue();
            int most = classes > 0 ? classes : Integer.MAX_VALUE - 1;
            if (value != Math.rint(value) || value < 0 || value >= most) {
                String known =
                        classes > 0 ? classes + ", from 0 to " + (classes - 1) : "those from 0 on";
                return "has the label %s, which is no class: there are %s (%s)"
                        .formatted(
                                each,
                                numbers == null ? known : classes + " names",
                                numbers == null ? "setNumClasses" : "setClassNames");
            }
            found[i] = (long) value;
        }
        LongStream.of(found).sorted().distinct().forEach(bits::putLong);
        return null;
    }

    /** Returns all names that are labels of rows, sorted. */
    String[] labelNames(JavaRDD<Row> rows) {
        int at = label;
        JavaRDD<String> names =
                rows.flatMap(
                        row -> {
                            List<String> own = row.isNullAt(at) ? List.of() : row.getList(at);
                            return own.stream().filter(Objects::nonNull).iterator();
                        });
        return InterruptibleJob.collect(names.distinct()).stream().sorted().toArray(String[]::new);
    }

    /** Sets the defaults of a classifier and its model. */
    static void setDefaults(PredictionParams<?> params) {
        params.setDefault(params.featuresCol(), "features");
        params.setDefault(params.predictionCol(), "prediction");
        params.setDefault(params.topClassesCol(), "topClasses");
        params.setDefault(params.topK(), 5);
    }

    /**
     * Returns the columns with those that a model adds.
     *
     * @throws IllegalArgumentException if the features are missing, a prediction is there already,
     *     or both have one name
     */
    static StructType withPredictions(StructType schema, PredictionParams<?> params) {
        String best = params.getPredictionCol();
        String top = params.getTopClassesCol();
        of(schema, params.getFeaturesCol(), null);
        if (!best.isEmpty() && isSame(best, top)) {
            throw new IllegalArgumentException(
                    "predictionCol and topClassesCol are both '"
                            + best
                            + "': give one another name, or an empty one, which leaves its column"
                            + " out (setPredictionCol, setTopClassesCol)");
        }
        StructType each =
                new StructType()
                        .add("label", DataTypes.LongType, false)
                        .add("name", DataTypes.StringType, false)
                        .add("probability", DataTypes.FloatType, false);
        StructType all = with(schema, best, DataTypes.DoubleType);
        return with(all, top, DataTypes.createArrayType(each, false));
    }

    private static StructType with(StructType schema, String name, DataType type) {
        if (name.isEmpty()) {
            return schema; // switched off, as everywhere in Spark ML
        }
        if (places(schema, name).length > 0) {
            throw new IllegalArgumentException(
                    "The DataFrame has a column '"
                            + name
                            + "' already: choose another name for the predictions");
        }
        return schema.add(name, type, false);
    }
}
