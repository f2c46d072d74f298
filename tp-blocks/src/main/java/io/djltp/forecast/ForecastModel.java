package io.djltp.forecast;

import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import java.util.Map;
import java.util.function.Consumer;

/**
 * What is known of a model whose step is forecast.
 *
 * @param dataType the type of parameters and activations
 * @param idType the type of ids, which ranks gather where a vocabulary is cut over those that the
 *     rows are
 * @param training whether it is trained, or there is a forward pass only
 * @param rowSparse whether the optimizer leaves rows of a table alone whose gradient is zero
 * @param check refuses blocks that communicate, and cannot say what from shapes
 * @param blockNames what blocks are called
 * @param parameterNames what parameters are called
 */
public record ForecastModel(
        DataType dataType,
        DataType idType,
        boolean training,
        boolean rowSparse,
        Consumer<Block> check,
        Map<Block, String> blockNames,
        Map<Parameter, String> parameterNames) {}
