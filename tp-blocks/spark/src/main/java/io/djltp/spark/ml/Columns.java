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

import scala.Function2;

import java.io.Serializable;
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
    static Columns of(StructType schema, String features, String label) {
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
        if (type instanceof ArrayType) {
            DataType element = ((ArrayType) type).elementType();
            if (element.equals(DataTypes.FloatType) || element.equals(DataTypes.DoubleType)) {
                return Kind.REALS;
            }
            if (element.equals(DataTypes.IntegerType)) {
                return Kind.INTEGERS;
            }
        }
        if (type instanceof org.apache.spark.mllib.linalg.VectorUDT) { // it calls itself a vector
            throw new IllegalArgumentException(
                    ("The column '%s' has vectors of the old package org.apache.spark.mllib.linalg:"
                                    + " features are those of org.apache.spark.ml.linalg"
                                    + " (VectorUDT), which"
                                    + " MLUtils.convertVectorColumnsToML(dataset, \"%s\")"
                                    + " makes of them")
                            .formatted(name, name));
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
     * Reads the features into an array of 32 bits each: of float32, or of int32.
     *
     * @return what is wrong with them, or {@code null}
     */
    String read(Row row, int[] bits) {
        if (kind == Kind.VECTOR) {
            double[] values = row.<Vector>getAs(features).toArray();
            for (int i = 0; i < values.length; i++) {
                bits[i] = Float.floatToRawIntBits((float) values[i]);
            }
        } else {
            List<Object> values = row.getList(features);
            for (int i = 0; i < bits.length; i++) {
                if (values.get(i) == null) {
                    return "feature " + i + " is null";
                }
                Number value = (Number) values.get(i);
                bits[i] =
                        kind == Kind.INTEGERS
                                ? value.intValue()
                                : Float.floatToRawIntBits(value.floatValue());
            }
        }
        return kind == Kind.INTEGERS ? null : firstNotFinite(row, bits);
    }

    private String firstNotFinite(Row row, int[] bits) {
        for (int i = 0; i < bits.length; i++) {
            if (!Float.isFinite(Float.intBitsToFloat(bits[i]))) {
                Object given =
                        kind == Kind.VECTOR
                                ? row.<Vector>getAs(features).apply(i)
                                : row.getList(features).get(i);
                boolean large = Double.isFinite(((Number) given).doubleValue());
                String why = large ? ", beyond float32 (" + Float.MAX_VALUE + ")" : "";
                return "feature " + i + " is " + given + why;
            }
        }
        return null;
    }

    /** Returns the label of a row, NaN if it is missing. */
    double label(Row row) {
        return row.isNullAt(label) ? Double.NaN : ((Number) row.get(label)).doubleValue();
    }
}
