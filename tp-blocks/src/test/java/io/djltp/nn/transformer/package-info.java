/** Contains the tests of io.djltp.nn.transformer. */
package io.djltp.nn.transformer;
