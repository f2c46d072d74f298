/** Contains the mixture of experts, its routing and the loss of its router. */
package io.djltp.nn.moe;
