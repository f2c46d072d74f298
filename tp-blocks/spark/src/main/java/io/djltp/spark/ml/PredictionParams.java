package io.djltp.spark.ml;

import org.apache.spark.ml.param.IntParam;
import org.apache.spark.ml.param.Param;
import org.apache.spark.ml.param.ParamValidators;
import org.apache.spark.ml.param.Params;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** What a classifier and its model have in common: which columns they read and write. */
public interface PredictionParams extends Params {

    /**
     * Returns the column with the features: a vector, an array of float or double, or, for a body
     * that looks them up, an array of int.
     *
     * @return the parameter; default {@code features}
     */
    default Param<String> featuresCol() {
        return new Param<>(this, "featuresCol", "the column with the features");
    }

    /**
     * Returns the value of {@link #featuresCol}.
     *
     * @return the value
     */
    default String getFeaturesCol() {
        return getOrDefault(featuresCol());
    }

    /**
     * Returns the column that the best class is written to, a double. An empty name leaves it out.
     *
     * @return the parameter; default {@code prediction}
     */
    default Param<String> predictionCol() {
        return new Param<>(this, "predictionCol", "the column for the best class");
    }

    /**
     * Returns the value of {@link #predictionCol}.
     *
     * @return the value
     */
    default String getPredictionCol() {
        return getOrDefault(predictionCol());
    }

    /**
     * Returns the column that the best classes are written to: an array of (label, name,
     * probability), best first. An empty name leaves it out.
     *
     * @return the parameter; default {@code topClasses}
     */
    default Param<String> topClassesCol() {
        return new Param<>(this, "topClassesCol", "the column for the best classes");
    }

    /**
     * Returns the value of {@link #topClassesCol}.
     *
     * @return the value
     */
    default String getTopClassesCol() {
        return getOrDefault(topClassesCol());
    }

    /**
     * Returns how many of the best classes are written.
     *
     * @return the parameter; default 5, or all classes if there are fewer
     */
    default IntParam topK() {
        return new IntParam(
                this, "topK", "how many of the best classes are written", ParamValidators.gt(0));
    }

    /**
     * Returns the value of {@link #topK}.
     *
     * @return the value
     */
    default int getTopK() {
        return (Integer) getOrDefault(topK());
    }

    /** Sets the defaults of these parameters. */
    default void setPredictionDefaults() {
        setDefault(featuresCol(), "features");
        setDefault(predictionCol(), "prediction");
        setDefault(topClassesCol(), "topClasses");
        setDefault(topK(), 5);
    }

    /**
     * Returns the columns with those that a model adds.
     *
     * @param schema the columns
     * @return the columns and the predictions
     * @throws IllegalArgumentException if the features are missing, a prediction is there already,
     *     or both have one name
     */
    default StructType withPredictions(StructType schema) {
        Columns.of(schema, getFeaturesCol(), null);
        StructType top =
                new StructType()
                        .add("label", DataTypes.LongType, false)
                        .add("name", DataTypes.StringType, false)
                        .add("probability", DataTypes.FloatType, false);
        String both = getPredictionCol();
        if (!both.isEmpty() && Columns.isSame(both, getTopClassesCol())) {
            throw new IllegalArgumentException(
                    "predictionCol and topClassesCol are both '"
                            + both
                            + "': give one another name, or an empty one, which leaves its column"
                            + " out (setPredictionCol, setTopClassesCol)");
        }
        StructType all = schema;
        for (StructField added :
                new StructField[] {
                    DataTypes.createStructField(getPredictionCol(), DataTypes.DoubleType, false),
                    DataTypes.createStructField(
                            getTopClassesCol(), DataTypes.createArrayType(top, false), false)
                }) {
            if (added.name().isEmpty()) {
                continue; // switched off, as everywhere in Spark ML
            }
            if (Columns.places(all, added.name()).length > 0) {
                throw new IllegalArgumentException(
                        "The DataFrame has a column '"
                                + added.name()
                                + "' already: choose another name for the predictions");
            }
            all = all.add(added);
        }
        return all;
    }
}
