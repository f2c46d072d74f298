package io.djltp.spark.ml;

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
import java.util.stream.IntStream;

/**
 * Where a row's features and its label are.
 *
 * @param features the place of the features
 * @param label the place of the label, or -1
 * @param kind the type of the features
 */
record Columns(int features, int label, Kind kind) implements Serializable {

    /** The types that features may have. */
    enum Kind {
        VECTOR,
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
        if (labelAt >= 0 && !(schema.apply(labelAt).dataType() instanceof NumericType)) {
            throw new IllegalArgumentException(
                    ("The column '%s' is of type %s: labels are the numbers of"
                                    + " classes, from 0. A StringIndexer makes them of names")
                            .formatted(label, schema.apply(labelAt).dataType().simpleString()));
        }
        return new Columns(at, labelAt, kindOf(features, schema.apply(at).dataType()));
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
        return kind == Kind.VECTOR
                ? row.<Vector>getAs(features).size()
                : row.getList(features).size();
    }

    /**
     * Reads the features, 32 bits each: float32, or int32.
     *
     * @return what is wrong with them, or {@code null}
     */
    @Nullable String read(Row row, ByteBuffer bits) {
        double[] vector = kind == Kind.VECTOR ? row.<Vector>getAs(features).toArray() : null;
        List<Number> list = vector == null ? row.getList(features) : List.of();
        int width = vector == null ? list.size() : vector.length;
        for (int i = 0; i < width; i++) {
            Number value = vector == null ? list.get(i) : (Number) vector[i];
            if (value == null) {
                return "feature " + i + " is null";
            }
            if (kind == Kind.INTEGERS) {
                bits.putInt(value.intValue());
                continue;
            }
            if (!Float.isFinite(value.floatValue())) {
                boolean large = Double.isFinite(value.doubleValue());
                String why = large ? ", beyond float32 (" + Float.MAX_VALUE + ")" : "";
                return "feature " + i + " is " + value + why;
            }
            bits.putFloat(value.floatValue());
        }
        return null;
    }

    /** Returns the label of a row, NaN if it is missing. */
    double label(Row row) {
        return row.isNullAt(label) ? Double.NaN : ((Number) row.get(label)).doubleValue();
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
