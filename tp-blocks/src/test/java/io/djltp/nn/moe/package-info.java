/** Contains the tests of the mixture of experts. */
package io.djltp.nn.moe;
