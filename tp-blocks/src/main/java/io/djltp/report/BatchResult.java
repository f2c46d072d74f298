package io.djltp.report;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListener.BatchData;

import java.util.Map;

/**
 * What is known of a batch when its passes are done.
 *
 * @param loss the mean loss
 * @param rows the rows over all ranks
 */
record BatchResult(double loss, long rows) {

    /** Computes the loss, and reads it from its device. */
    static BatchResult of(Trainer trainer, BatchData batch) {
        double sum = 0;
        long rows = 0;
        Map<Device, NDList> labels = batch.getLabels();
        for (Map.Entry<Device, NDList> part : labels.entrySet()) {
            NDList predictions = batch.getPredictions().get(part.getKey());
            NDArray loss = trainer.getLoss().evaluate(part.getValue(), predictions);
            sum += loss.toType(DataType.FLOAT32, false).getFloat();
            rows += part.getValue().head().getShape().get(0);
        }
        return new BatchResult(sum / labels.size(), rows);
    }
}
