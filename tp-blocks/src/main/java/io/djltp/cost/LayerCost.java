package io.djltp.cost;

import ai.djl.ndarray.types.Shape;

import java.util.List;

/**
 * A layer of the network: a block with parameters of its own.
 *
 * @param name its name in the network, by which {@link io.djltp.collective.TrafficTable} knows it
 * @param type its class
 * @param input the shape of its first input over all ranks
 * @param equation what a rank computes, or an empty text if the layer says nothing of ranks
 * @param parameters its own parameters
 */
public record LayerCost(
        String name, String type, Shape input, String equation, List<ParameterCost> parameters) {}
